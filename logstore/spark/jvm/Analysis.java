package logstore.spark;

import java.util.function.Supplier;

import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;
import scala.collection.immutable.Map$;

/** What fails while a query is planned is an AnalysisException, as it is of the Python source. */
final class Analysis {
    private Analysis() {}

    static <T> T told(Supplier<T> planning) {
        SupportedSpark.check();
        try {
            return planning.get();
        } catch (StoreException error) {
            throw Analysis.<RuntimeException>unchecked(new AnalysisException(error.getMessage(), Option.empty(), Option.empty(),
                Option.apply(error), Option.empty(), Map$.MODULE$.empty(), new QueryContext[0]));
        }
    }

    /** Spark's own code, in Scala, throws it without a declaration. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> E unchecked(Throwable error) throws E {
        throw (E) error;
    }
}
