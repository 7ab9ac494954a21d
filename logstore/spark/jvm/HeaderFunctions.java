package logstore.spark;

import java.io.Serializable;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** Functions of the column header of exported rows (joined.py), with the values that the columns of a log have. */
public final class HeaderFunctions {
    private static final long SECOND_US = 1_000_000L;

    private HeaderFunctions() {}

    /** The column properties of a header. */
    public static final class Properties extends Decoding<Row> implements UDF1<byte[], Row> {
        private static final long serialVersionUID = 1L;

        public Properties() {
            super(false);
        }

        @Override
        public Row call(byte[] header) {
            return decoded(header);
        }

        @Override
        Row shown(MessageProperties found) {
            List<Object> values = new ArrayList<>();
            for (int number = 0; number < found.values.length; number++) {
                if (MessageProperties.isShown(number)) {
                    values.add(external(found.values[number]));
                }
            }
            return RowFactory.create(values.toArray());
        }

        private static Object external(Object value) {
            if (value instanceof Long) {
                return Instant.ofEpochSecond((Long) value / SECOND_US); // times of AMQP are in seconds
            }
            return value instanceof UTF8String ? value.toString() : value;
        }
    }

    /** The column headers of a header. */
    public static final class Headers extends Decoding<Map<String, String>> implements UDF1<byte[], Map<String, String>> {
        private static final long serialVersionUID = 1L;

        public Headers() {
            super(true);
        }

        @Override
        public Map<String, String> call(byte[] header) {
            return decoded(header);
        }

        @Override
        Map<String, String> shown(MessageProperties found) {
            ColumnarMap headers = found.headers();
            ColumnarArray names = headers.keyArray();
            ColumnarArray texts = headers.valueArray();
            Map<String, String> made = new LinkedHashMap<>();
            for (int i = 0; i < headers.numElements(); i++) {
                made.put(names.getUTF8String(i).toString(), texts.isNullAt(i) ? null : texts.getUTF8String(i).toString());
            }
            return made;
        }
    }

    /** What was decoded is kept by the task that calls the function. */
    private abstract static class Decoding<T> implements Serializable {
        private static final long serialVersionUID = 1L;

        private final boolean headers;
        private transient KnownProperties known;

        Decoding(boolean headers) {
            this.headers = headers;
        }

        abstract T shown(MessageProperties found);

        synchronized T decoded(byte[] header) {
            if (known == null) {
                known = new KnownProperties(headers);
            }
            known.trim();
            MessageProperties found = known.of(UTF8String.fromBytes(header));
            return found == MessageProperties.NONE ? null : shown(found);
        }
    }
}
