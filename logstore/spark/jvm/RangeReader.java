package logstore.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The rows of one range as batches, in LSN order. The batch of get() is valid until the next call of next(). */
final class RangeReader implements PartitionReader<ColumnarBatch> {
    static final int QUEUE = 10; // LS_ROWS_QUEUE: its texts are the range's, and its indices have four bytes
    private static final int TYPE = 1; // LS_ROWS_TYPE
    private static final int QUEUE_IDS = 12; // LS_ROWS_QUEUE_IDS
    private static final int HEADER = 34; // LS_ROWS_HEADER

    // Columns that the scanner does not have, as planner.py numbers them.
    private static final int STORE = -1;
    private static final int PROPERTIES = -2;
    private static final int HEADERS = -3;
    private static final Logger LOG = LoggerFactory.getLogger("logstore.spark");

    private final Plan.Common common;
    private final Plan.Range range;
    private final long limit;
    private final BatchMemory memory;
    private final long[] layout;
    private final ColumnVector[] columns;
    private final LogColumn items;
    private final LogColumn header; // that the properties are made from
    private final BatchProperties properties; // null: no column shows them
    private final ColumnarBatch batch;
    private long keepLsn;
    private int knownTypes;
    private long rows;
    private boolean ended;

    RangeReader(Plan.Common common, Plan.Range range, StructType schema, long limit) {
        this.common = common;
        this.range = range;
        this.limit = limit;
        keepLsn = range.keepLsn;
        layout = Scanner.newLayout();
        memory = new BatchMemory(opened());
        ended = memory.scan() == 0;
        items = new LogColumn(DataTypes.LongType, memory, null, null, false);
        header = new LogColumn(DataTypes.BinaryType, memory, null, null, false);
        properties = shows(PROPERTIES) || shows(HEADERS) ? new BatchProperties(header, shows(HEADERS)) : null;
        columns = new ColumnVector[common.columns.length];
        StructField[] fields = schema.fields();
        for (int i = 0; i < columns.length; i++) {
            int number = common.columns[i];
            columns[i] = number == PROPERTIES || number == HEADERS
                ? properties.column(fields[i].dataType())
                : new LogColumn(fields[i].dataType(), memory, number == QUEUE_IDS ? items : null, texts(number),
                    number == QUEUE);
        }
        batch = new ColumnarBatch(columns);
    }

    private boolean shows(int column) {
        return Arrays.stream(common.columns).anyMatch(number -> number == column);
    }

    /** A scan of the range; 0: a part of it is gone, and the stream may lose it. */
    private long opened() {
        while (true) {
            try {
                return Scanner.open(range.path.getBytes(StandardCharsets.UTF_8), numbers(), range.queueIds, range.ids,
                    range.named);
            } catch (StoreException failed) {
                if (!common.lossy || !failed.kind().equals(Failure.RECYCLED)) {
                    throw failed;
                }
                if (keepLsn == range.startLsn) {
                    lost(failed.text());
                    return 0;
                }
                keepLsn = range.startLsn; // what its values look back to may be gone, but not the range
            }
        }
    }

    private void lost(String why) {
        LOG.warn("{}: rows below LSN {} are missing: {}", range.path, range.stopLsn, why);
    }

    /** The numbers of Scanner.open. */
    private long[] numbers() {
        long mask = 0;
        for (int number : common.columns) {
            mask |= number == STORE ? 0 : 1L << (number < 0 ? HEADER : number);
        }
        return new long[] {
            keepLsn, range.endLsn, common.permissive ? 1 : 0, mask, range.startLsn, range.stopLsn, range.asOfLsn,
            Math.min(common.batchRows, Math.max(1, limit)), common.bodyBytes, range.types, range.timed ? 1 : 0, range.startUs,
            range.stopUs,
        };
    }

    private UTF8String[] texts(int number) {
        if (number == STORE) {
            return new UTF8String[] {UTF8String.fromString(range.uuid)};
        }
        String[] texts = number == QUEUE ? range.names : common.dictionaries[number];
        if (texts == null) {
            return null;
        }
        UTF8String[] made = new UTF8String[texts.length];
        for (int i = 0; i < made.length; i++) {
            made[i] = UTF8String.fromString(texts[i]);
        }
        knownTypes = number == TYPE ? made.length : knownTypes;
        return made;
    }

    @Override
    public synchronized boolean next() {
        if (ended || rows >= limit) {
            return false;
        }
        long found = 0;
        while (found == 0) {
            TaskContext task = TaskContext.get();
            if (task != null) {
                task.killTaskIfInterrupted();
            }
            found = scanned();
        }
        if (found == Scanner.END) {
            ended = true;
            tellMissing();
            return false;
        }
        memory.replace(found);
        show();
        return true;
    }

    private long scanned() {
        try {
            return Scanner.next(memory.scan(), layout);
        } catch (StoreException failed) {
            if (!failed.kind().equals(Failure.RECYCLED)) {
                throw failed;
            }
            // A range that knows the end of the log may also have lost it in a crash.
            StoreException told = range.endLsn == 0 ? Failure.overtaken(range.path, keepLsn) : failed;
            if (!common.lossy) {
                throw told;
            }
            if (rows == 0 && keepLsn != range.startLsn) {
                keepLsn = range.startLsn;
                memory.reopen(opened());
                return memory.scan() == 0 ? Scanner.END : 0;
            }
            lost(told.text());
            return Scanner.END;
        }
    }

    private void show() {
        int count = (int) Math.min(layout[0], limit - rows);
        rows += count;
        items.show(layout, layout.length - Scanner.COLUMN_NUMBERS);
        for (int i = 0; i < columns.length; i++) {
            int number = common.columns[i];
            if (number < 0) {
                continue;
            }
            LogColumn column = (LogColumn) columns[i];
            column.show(layout, 1 + number * Scanner.COLUMN_NUMBERS);
            if (number == TYPE) {
                learnTypes(column);
            }
        }
        if (properties != null) {
            header.show(layout, 1 + HEADER * Scanner.COLUMN_NUMBERS);
            properties.show(count);
        }
        batch.setNumRows(count);
    }

    /** Adds record types of a later version, which get a number when the scan meets them. */
    private void learnTypes(LogColumn column) {
        while (Scanner.type(memory.scan(), knownTypes) != 0) {
            UTF8String[] before = column.texts();
            UTF8String[] more = Arrays.copyOf(before, before.length + 1);
            more[before.length] = UTF8String.fromString(String.format("0x%04x", Scanner.type(memory.scan(), knownTypes)));
            column.setTexts(more);
            knownTypes++;
        }
    }

    private void tellMissing() {
        if (!common.permissive) {
            return;
        }
        long[] missing = Scanner.missing(memory.scan());
        for (int i = 0; i < missing.length; i += 2) {
            if (missing[i + 1] > range.startLsn && missing[i] < range.stopLsn) {
                LOG.warn("{}: from LSN {} up to LSN {} what cannot be read was left out: `logstore verify` says what is damaged",
                    range.path, missing[i], missing[i + 1]);
            }
        }
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    /** The rows of the current batch. */
    int count() {
        return batch.numRows();
    }

    @Override
    public synchronized void close() {
        ended = true;
        memory.close();
    }
}
