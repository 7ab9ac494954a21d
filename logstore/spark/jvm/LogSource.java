package logstore.spark;

import java.util.Map;

import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format logstore-jvm: the records of a log, with the columns, options and offsets of the Python source. */
public class LogSource implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "logstore-jvm";
    }

    /** Why the connector does not work in this JVM, as the text of an exception; null if it does. */
    public String problem() {
        try {
            SupportedSpark.check();
            Scanner.newLayout();
            return null;
        } catch (StoreException error) {
            return error.getMessage();
        } catch (LinkageError error) {
            return "StoreError: " + (error.getCause() instanceof StoreException ? ((StoreException) error.getCause()).text()
                : "the native library of the source logstore-jvm was not loaded: " + error.getMessage());
        }
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return Analysis.told(() -> (StructType) DataType.fromJson(Planner.get().call("schema",
            Planner.request().set("options", Planner.options(options.asCaseSensitiveMap()))).textValue()));
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
        return new LogTable(schema, options);
    }
}
