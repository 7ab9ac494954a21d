package logstore.spark;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes message headers, and remembers what it has decoded: equal properties have one object, whenever they were published
 * and whenever they expire. One thread at a time uses it.
 */
final class KnownProperties {
    private static final long KEPT_BYTES = 8 << 20;

    // The layout of a header is in broker/headers.py.
    private static final int VERSION = 1;
    private static final int EXPIRES = 1;
    private static final int PLAIN_BYTES = 10;
    private static final int EXPIRING_BYTES = 14;

    private final boolean headers;
    private final Map<UTF8String, MessageProperties> known = new LinkedHashMap<>(16, 0.75f, true);
    private long bytes;

    /** The texts of the AMQP headers are made only if they are wanted. */
    KnownProperties(boolean headers) {
        this.headers = headers;
    }

    /** Forgets what was used least recently, until the rest is within the limit. */
    void trim() {
        Iterator<Map.Entry<UTF8String, MessageProperties>> oldest = known.entrySet().iterator();
        while (bytes > KEPT_BYTES) {
            bytes -= bytes(oldest.next());
            oldest.remove();
        }
    }

    private static long bytes(Map.Entry<UTF8String, MessageProperties> one) {
        return one.getKey().numBytes() + one.getValue().bytes();
    }

    /** What this message header says; NONE for null, and for other bytes than the broker's. */
    MessageProperties of(UTF8String header) {
        if (header == null || header.numBytes() < PLAIN_BYTES || header.getByte(0) != VERSION) {
            return MessageProperties.NONE;
        }
        int flags = header.getByte(1) & 0xff;
        int start = flags == EXPIRES ? EXPIRING_BYTES : PLAIN_BYTES;
        int size = header.numBytes() - start;
        if (flags > EXPIRES || size < 0) {
            return MessageProperties.NONE;
        }
        UTF8String rest = UTF8String.fromAddress(header.getBaseObject(), header.getBaseOffset() + start, size);
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
}
