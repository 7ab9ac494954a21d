package logstore.spark;

import java.util.OptionalLong;

import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** The scan of one query. It is planned once, so that all its tasks see the stores as of one moment. */
final class LogScan implements SupportsReportStatistics, Batch {
    /** Bytes of log of one record, at the lower end: an estimate of rows that is too large keeps a table from being broadcast. */
    private static final long RECORD_BYTES = 64;
    private static final long ROW_BYTES = 8;

    private final Query query;
    private Plan plan;
    private boolean streams;

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
        if (query.counts == 0) {
            return query.columns;
        }
        StructType made = new StructType();
        for (int i = 0; i < query.counts; i++) {
            made = made.add("count_" + i, DataTypes.LongType, false);
        }
        return made;
    }

    @Override
    public String description() {
        StringBuilder told = new StringBuilder("logstore-jvm ");
        told.append(query.options.getOrDefault("path", query.options.getOrDefault("paths", "")));
        told.append(", PushedFilters: ").append(query.decided);
        if (query.limit != Query.NO_LIMIT) {
            told.append(", PushedLimit: ").append(query.limit);
        }
        if (query.counts > 0) {
            told.append(", PushedAggregates: COUNT");
        }
        return told.toString();
    }

    /**
     * From the bytes of the log that is read: the number of rows that pass the conditions is not known before. A stream
     * has no plan, and its batches have Spark's default size.
     */
    @Override
    public Statistics estimateStatistics() {
        if (streams) {
            return new Unknown();
        }
        Plan planned = plan();
        long rows = query.counts > 0 ? planned.ranges.length : Math.min(query.limit, planned.bytes() / RECORD_BYTES);
        long bytes = rows * (ROW_BYTES + readSchema().defaultSize());
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return OptionalLong.of(bytes);
            }

            @Override
            public OptionalLong numRows() {
                return query.counts > 0 ? OptionalLong.of(rows) : OptionalLong.empty();
            }
        };
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        InputPartition[] ranges = plan().ranges;
        return query.counts > 0 && ranges.length == 0 ? new InputPartition[] {new Plan.Nothing()} : ranges;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new RangeReaderFactory(plan().common, query.columns, query.limit, query.counts);
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return new LogStream(query);
    }

    private static final class Unknown implements Statistics {
        @Override
        public OptionalLong sizeInBytes() {
            return OptionalLong.empty();
        }

        @Override
        public OptionalLong numRows() {
            return OptionalLong.empty();
        }
    }
}
