package logstore.spark;

import java.util.Map;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructType;

/** Collects what a query needs of a log. */
final class LogScanBuilder implements SupportsPushDownRequiredColumns {
    private final Query query;

    LogScanBuilder(StructType schema, Map<String, String> options) {
        query = new Query(schema, options);
    }

    @Override
    public void pruneColumns(StructType required) {
        query.columns = required;
    }

    @Override
    public Scan build() {
        return new LogScan(query);
    }
}
