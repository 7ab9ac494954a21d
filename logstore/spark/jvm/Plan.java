package logstore.spark;

import java.io.Serializable;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.read.InputPartition;

/** What a planner's plan says, in the form that travels to executors. */
final class Plan {
    final Common common;
    final InputPartition[] ranges;

    Plan(JsonNode told) {
        common = new Common(told);
        JsonNode tasks = told.get("tasks");
        ranges = new InputPartition[tasks.size()];
        for (int i = 0; i < ranges.length; i++) {
            ranges[i] = new Range(tasks.get(i));
        }
    }

    /** Bytes of log in all ranges. */
    long bytes() {
        long sum = 0;
        for (InputPartition one : ranges) {
            sum += ((Range) one).stopLsn - ((Range) one).startLsn;
        }
        return sum;
    }

    /** What all tasks of a query have in common. */
    static final class Common implements Serializable {
        private static final long serialVersionUID = 1L;

        /** For each column of the schema its number in the scanner; negative: what RangeReader makes. */
        final int[] columns;
        /** By a column's number: the texts that its indices mean; null: no column of indices. */
        final String[][] dictionaries;
        final int batchRows;
        final long bodyBytes;
        final boolean permissive;
        /** A stream that may lose what was recycled before it was read. */
        final boolean lossy;

        Common(JsonNode told) {
            JsonNode numbers = told.get("columns");
            columns = new int[numbers.size()];
            for (int i = 0; i < columns.length; i++) {
                columns[i] = numbers.get(i).intValue();
            }
            dictionaries = new String[Long.SIZE][];
            for (JsonNode one : told.get("dictionaries")) {
                dictionaries[one.get("column").intValue()] = Json.texts(one.get("texts"));
            }
            batchRows = told.get("batch_rows").intValue();
            bodyBytes = told.get("body").longValue();
            permissive = told.get("permissive").booleanValue();
            lossy = told.get("lossy").booleanValue();
        }
    }

    /** The task of a count that has no range to read. */
    static final class Nothing implements InputPartition {
        private static final long serialVersionUID = 1L;
    }

    /** The range of one task; the fields are those of plan.Range in Python. */
    static final class Range implements InputPartition {
        private static final long serialVersionUID = 1L;

        final String path;
        final String uuid;
        final long startLsn;
        final long stopLsn;
        final long keepLsn;
        /** Where the planner found the end of the log; 0: it is searched. */
        final long endLsn;
        final long asOfLsn;
        final long types;
        final boolean timed;
        final long startUs;
        final long stopUs;
        final long[] queueIds;
        final long[] ids;
        final long[] named;
        final String[] names;

        Range(JsonNode told) {
            path = told.get("path").textValue();
            uuid = told.get("uuid").textValue();
            startLsn = told.get("start_lsn").longValue();
            stopLsn = told.get("stop_lsn").longValue();
            keepLsn = told.get("keep_lsn").longValue();
            endLsn = told.get("end_lsn").longValue();
            asOfLsn = told.get("as_of_lsn").longValue();
            types = told.get("types").longValue();
            boolean starts = !told.get("start_us").isNull();
            boolean stops = !told.get("stop_us").isNull();
            timed = starts || stops;
            startUs = starts ? told.get("start_us").longValue() : 0;
            stopUs = stops ? told.get("stop_us").longValue() : -1; // without a sign the last time
            queueIds = Json.longs(told.get("queue_ids"));
            ids = Json.longs(told.get("ids"));
            named = Json.longs(told.get("named"));
            names = Json.texts(told.get("names"));
        }
    }
}
