package logstore.spark;

import java.util.Arrays;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of the current batch that are made from its message headers; what was decoded is kept for later batches. */
final class BatchProperties {
    private final LogColumn header;
    private final KnownProperties known;
    private MessageProperties[] rows = {};

    /** Of the headers in this column; the texts of the AMQP headers are made only if they are wanted. */
    BatchProperties(LogColumn header, boolean headers) {
        this.header = header;
        known = new KnownProperties(headers);
    }

    /** The column properties with the fields of this type, or the column headers. */
    ColumnVector column(DataType type) {
        return type instanceof StructType ? new Struct((StructType) type) : new Headers(type);
    }

    /** Decodes the batch that the column of headers shows. */
    void show(int count) {
        known.trim(); // never within a batch, so that each is decoded once
        MessageProperties[] made = new MessageProperties[count];
        for (int row = 0; row < count; row++) {
            made[row] = known.of(header.getUTF8String(row));
        }
        rows = made;
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
