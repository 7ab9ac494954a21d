package logstore.spark;

import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The columns of the current batch that are made from its message headers. Within a batch equal properties are decoded once,
 * whenever they were published and whenever they expire; what was decoded is kept for later batches, up to a limit in bytes.
 */
final class BatchProperties {
    private static final long KEPT_BYTES = 8 << 20;

    // The layout of a header is in broker/headers.py.
    private static final int VERSION = 1;
    private static final int EXPIRES = 1;
    private static final int PLAIN_BYTES = 10;
    private static final int EXPIRING_BYTES = 14;

    private final LogColumn header;
    private final boolean headers;
    private final Map<UTF8String, MessageProperties> known = new LinkedHashMap<>(16, 0.75f, true);
    private MessageProperties[] rows = {};
    private long bytes;

    /** Of the headers in this column; the texts of the AMQP headers are made only if they are wanted. */
    BatchProperties(LogColumn header, boolean headers) {
        this.header = header;
        this.headers = headers;
    }

    /** The column properties with the fields of this type, or the column headers. */
    ColumnVector column(DataType type) {
        return type instanceof StructType ? new Struct((StructType) type) : new Headers(type);
    }

    /** Decodes the batch that the column of headers shows. */
    void show(int count) {
        forget();
        MessageProperties[] made = new MessageProperties[count];
        for (int row = 0; row < count; row++) {
            made[row] = decoded(header.getUTF8String(row));
        }
        rows = made;
    }

    /** What was used least recently; never within a batch. */
    private void forget() {
        Iterator<Map.Entry<UTF8String, MessageProperties>> oldest = known.entrySet().iterator();
        while (bytes > KEPT_BYTES) {
            bytes -= bytes(oldest.next());
            oldest.remove();
        }
    }

    private static long bytes(Map.Entry<UTF8String, MessageProperties> one) {
        return one.getKey().numBytes() + one.getValue().bytes();
    }

    private MessageProperties decoded(UTF8String found) {
        if (found == null || found.numBytes() < PLAIN_BYTES || found.getByte(0) != VERSION || found.getByte(1) > EXPIRES
            || found.getByte(1) < 0) {
            return MessageProperties.NONE;
        }
        int start = found.getByte(1) == EXPIRES ? EXPIRING_BYTES : PLAIN_BYTES;
        int size = found.numBytes() - start;
        if (size < 0) {
            return MessageProperties.NONE;
        }
        UTF8String rest = UTF8String.fromAddress(found.getBaseObject(), found.getBaseOffset() + start, size);
        MessageProperties before = known.get(rest);
        if (before != null) {
            return before;
        }
        byte[] data = rest.getBytes();
        Map.Entry<UTF8String, MessageProperties> made =
            Map.entry(UTF8String.fromBytes(data), PropertyReader.read(data, headers));
        known.put(made.getKey(), made.getValue());
        bytes += bytes(made);
        return made.getValue();
    }

    /** A column with a value for each row of the batch. */
    private abstract class Made extends LogVector {
        Made(DataType type) {
            super(type);
        }

        @Override
        public int numNulls() {
            int count = 0;
            for (int row = 0; row < rows.length; row++) {
                count += isNullAt(row) ? 1 : 0;
            }
            return count;
        }

        @Override
        public boolean isNullAt(int row) {
            return rows[row] == MessageProperties.NONE;
        }
    }

    private final class Headers extends Made {
        Headers(DataType type) {
            super(type);
        }

        @Override
        public ColumnarMap getMap(int row) {
            return isNullAt(row) ? null : rows[row].headers();
        }
    }

    /** With the fields that the query has, in its order. */
    private final class Struct extends Made {
        private final ColumnVector[] fields;

        Struct(StructType type) {
            super(type);
            fields = Arrays.stream(type.fields()).map(Field::new).toArray(ColumnVector[]::new);
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            return fields[ordinal];
        }
    }

    private final class Field extends Made {
        private final int number;

        Field(StructField field) {
            super(field.dataType());
            number = MessageProperties.NAMES.indexOf(field.name());
        }

        @Override
        public boolean isNullAt(int row) {
            return rows[row].values[number] == null;
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return (UTF8String) rows[row].values[number];
        }

        @Override
        public int getInt(int row) {
            return (Integer) rows[row].values[number];
        }

        @Override
        public long getLong(int row) {
            return (Long) rows[row].values[number];
        }
    }
}
