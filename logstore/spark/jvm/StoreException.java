package logstore.spark;

import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import scala.collection.immutable.Map;

/**
 * A failure with the text of the Python package's exception; its message begins with the name of that class. It is one of
 * Spark's own, because PySpark raises others as errors of its bridge.
 */
public final class StoreException extends SparkRuntimeException {
    private static final long serialVersionUID = 1L;

    private final String kind;
    private final String text;

    StoreException(String kind, String text) {
        super("INTERNAL_ERROR", parameters(text), null, new QueryContext[0], "");
        this.kind = kind;
        this.text = text;
    }

    /** Spark makes the message of its template, which getMessage() then replaces. */
    private static Map<String, String> parameters(String text) {
        return new Map.Map1<>("message", text);
    }

    /** The name of the exception's class in logstore.errors, such as CorruptLog. */
    public String kind() {
        return kind;
    }

    /** What happened, where, and what to do next. */
    public String text() {
        return text;
    }

    @Override
    public String getMessage() {
        return kind + ": " + text;
    }

    @Override
    public String getCondition() {
        return "LOGSTORE." + kind;
    }

    @Override
    public boolean isInternalError() {
        return false;
    }
}
