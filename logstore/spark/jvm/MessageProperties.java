package logstore.spark;

import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The AMQP properties of one message header, and its headers as texts, made by PropertyReader. */
final class MessageProperties {
    /** Where a message's exchange and routing key stand, and then the properties of AMQP 0-9-1 in wire order. */
    static final List<String> NAMES = List.of("exchange", "routing_key", "content_type", "content_encoding", "headers",
        "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id",
        "app_id", "cluster_id");

    private static final List<String> HIDDEN = List.of("headers", "cluster_id");

    /** Of a row without a header, and of bytes that are no property list. */
    static final MessageProperties NONE = new MessageProperties(new Object[NAMES.size()]);

    private static final int OBJECT_BYTES = 64; // about what an object with its reference takes

    /** By the number in NAMES: a UTF8String, an Integer, a Long with microseconds since 1970, or null. */
    final Object[] values;
    private final UTF8String[] headerNames;
    private final UTF8String[] headerTexts;
    private final ColumnarMap headers;

    /** Without headers, because no column shows them. */
    MessageProperties(Object[] values) {
        this(values, Map.of());
    }

    MessageProperties(Object[] values, Map<UTF8String, Object> headers) {
        this.values = values;
        headerNames = headers.keySet().toArray(new UTF8String[0]);
        headerTexts = headers.values().stream().map(HeaderText::of).toArray(UTF8String[]::new);
        this.headers = new ColumnarMap(new Texts(headerNames), new Texts(headerTexts), 0, headerNames.length);
    }

    /** Whether the column properties has the field with this number; the headers are a column of their own. */
    static boolean isShown(int number) {
        return !HIDDEN.contains(NAMES.get(number));
    }

    ColumnarMap headers() {
        return headers;
    }

    /** About the memory that this takes, beside the bytes that it was read from. */
    long bytes() {
        long sum = OBJECT_BYTES * (8L + NAMES.size() + 2L * headerNames.length);
        for (UTF8String one : headerTexts) {
            sum += one == null ? 0 : one.numBytes();
        }
        return sum;
    }

    /** All names, or all texts, of the headers of one message. */
    private static final class Texts extends LogVector {
        private final UTF8String[] texts;

        Texts(UTF8String[] texts) {
            super(DataTypes.StringType);
            this.texts = texts;
        }

        @Override
        public int numNulls() {
            return (int) Arrays.stream(texts).filter(one -> one == null).count();
        }

        @Override
        public boolean isNullAt(int row) {
            return texts[row] == null;
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return texts[row];
        }
    }
}
