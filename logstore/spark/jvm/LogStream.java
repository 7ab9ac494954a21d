package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * A stream of the log. The planner has its state and its holds: the object that the Python source has, so offsets and
 * checkpoints are those of the Python source. A planner that has ended is replaced; the new one takes the holds again.
 */
final class LogStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final Query query;
    private Planner planner;
    private long number;
    private boolean endsWithAvailable;
    private Plan.Common common;

    LogStream(Query query) {
        this.query = query;
    }

    private ObjectNode request() {
        return query.request().put("columns", query.columns.json());
    }

    private synchronized JsonNode call(String name, ObjectNode arguments) {
        if (planner == null || !planner.isAlive()) {
            SupportedSpark.check();
            planner = Planner.get();
            number = planner.call("stream", request()).longValue();
            if (endsWithAvailable) {
                planner.call("available", Planner.request().put("stream", number));
            }
        }
        return planner.call(name, arguments.put("stream", number));
    }

    private static Offset offset(JsonNode told) {
        return told.isNull() ? null : new Position(told.textValue());
    }

    @Override
    public Offset initialOffset() {
        return offset(call("initial", Planner.request()));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Position(json);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks a source with limits for latestOffset(Offset, ReadLimit)");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        ObjectNode asked = Planner.request().put("start", start.json()).putNull("rows").putNull("size");
        if (limit instanceof ReadMaxRows) {
            asked.put("rows", ((ReadMaxRows) limit).maxRows());
        } else if (limit instanceof ReadMaxBytes) {
            asked.put("size", ((ReadMaxBytes) limit).maxBytes());
        }
        return offset(call("latest", asked));
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        JsonNode told = call("limit", Planner.request());
        if (told.has("rows")) {
            return ReadLimit.maxRows(told.get("rows").longValue());
        }
        return told.has("size") ? ReadLimit.maxBytes(told.get("size").longValue()) : ReadLimit.allAvailable();
    }

    @Override
    public Offset reportLatestOffset() {
        return offset(call("report", Planner.request()));
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        call("available", Planner.request());
        endsWithAvailable = true;
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        Plan plan = new Plan(call("batch", request().put("start", start.json()).put("end", end.json())));
        common = plan.common;
        return plan.ranges;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new RangeReaderFactory(common, query.columns, Query.NO_LIMIT, 0);
    }

    @Override
    public void commit(Offset end) {
        call("commit", Planner.request().put("end", end.json()));
    }

    @Override
    public synchronized void stop() {
        if (planner != null && planner.isAlive()) {
            planner.call("stop", Planner.request().put("stream", number));
        }
        planner = null;
    }

    /** An offset as the planner writes it. */
    private static final class Position extends Offset {
        private final String json;

        Position(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }
}
