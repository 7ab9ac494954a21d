package logstore.spark;

import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;

/** The scan of one query. It is planned once, so that all its tasks see the stores as of one moment. */
final class LogScan implements Scan, Batch {
    private final Query query;
    private Plan plan;

    LogScan(Query query) {
        this.query = query;
    }

    private synchronized Plan plan() {
        if (plan == null) {
            plan = Analysis.told(() -> new Plan(Planner.get().call("plan",
                query.request().put("columns", query.columns.json()).set("filters", Conditions.told(query.filters)))));
        }
        return plan;
    }

    @Override
    public StructType readSchema() {
        return query.columns;
    }

    @Override
    public String description() {
        return "logstore-jvm " + query.options.getOrDefault("path", query.options.getOrDefault("paths", ""));
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return plan().ranges;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new RangeReaderFactory(plan().common, query.columns, query.limit, query.counts);
    }
}
