package logstore.spark;

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the part of a message header that has its routing and properties (the layout is in broker/headers.py), with the rules
 * of rows/properties.py: what is no property list there is none here. Texts are parts of the bytes, not copies.
 */
final class PropertyReader {
    /** The kind of each of MessageProperties.NAMES: a short string, a table, a byte, a time. */
    private static final String KINDS = "ssssFBBssssTssss";
    private static final int ROUTING = 2; // the first names, which have no flag
    private static final int FIRST_FLAG = 15;
    private static final int KNOWN_FLAGS = 0xfffc;
    private static final int DEPTH_MAX = 32;
    private static final long SECONDS_MAX = 253_402_300_799L; // of the year 9999
    private static final long SECOND_US = 1_000_000L;

    private final byte[] data;
    private final ByteBuffer numbers;
    private int at;

    private PropertyReader(byte[] data) {
        this.data = data;
        numbers = ByteBuffer.wrap(data);
    }

    /** What these bytes say; NONE for others. The headers are there if they are wanted. */
    static MessageProperties read(byte[] data, boolean headers) {
        try {
            return new PropertyReader(data).properties(headers);
        } catch (Malformed error) {
            return MessageProperties.NONE;
        }
    }

    private MessageProperties properties(boolean wanted) throws Malformed {
        Object[] values = new Object[KINDS.length()];
        Map<UTF8String, Object> headers = Map.of();
        int told = KNOWN_FLAGS;
        for (int number = 0; number < values.length; number++) {
            if (number == ROUTING) {
                told = numbers.getShort(taken(Short.BYTES)) & 0xffff;
                if ((told & ~KNOWN_FLAGS) != 0) {
                    throw new Malformed();
                }
            }
            if (number >= ROUTING && (told & 1 << (FIRST_FLAG + ROUTING - number)) == 0) {
                continue;
            }
            switch (KINDS.charAt(number)) {
                case 's' -> values[number] = shortText();
                case 'F' -> headers = table(0);
                case 'B' -> values[number] = data[taken(1)] & 0xff;
                default -> {
                    long seconds = seconds();
                    values[number] = seconds < 0 ? null : (Object) (seconds * SECOND_US);
                }
            }
        }
        if (at != data.length) {
            throw new Malformed();
        }
        return wanted ? new MessageProperties(values, headers) : new MessageProperties(values);
    }

    /** Where the next bytes begin, which are then behind this. */
    private int taken(long count) throws Malformed {
        if (count > data.length - at) {
            throw new Malformed();
        }
        int begin = at;
        at += (int) count;
        return begin;
    }

    private UTF8String shortText() throws Malformed {
        int size = data[taken(1)] & 0xff;
        UTF8String made = UTF8String.fromBytes(data, taken(size), size);
        if (!made.isValid()) {
            throw new Malformed();
        }
        return made;
    }

    /** The size of a field that begins with it, all of which is there. */
    private int size() throws Malformed {
        long size = numbers.getInt(taken(Integer.BYTES)) & 0xffff_ffffL;
        if (size > data.length - at) {
            throw new Malformed();
        }
        return (int) size;
    }

    /** Seconds since 1970; negative: after the year 9999. */
    private long seconds() throws Malformed {
        long found = numbers.getLong(taken(Long.BYTES));
        return found > SECONDS_MAX ? -1 : found;
    }

    /** Of a name that is there twice the first place and the last value. */
    private Map<UTF8String, Object> table(int depth) throws Malformed {
        int size = size();
        int end = at + size;
        Map<UTF8String, Object> made = new LinkedHashMap<>();
        while (at < end) {
            UTF8String name = shortText();
            made.put(name, value(depth + 1));
        }
        if (at != end) {
            throw new Malformed();
        }
        return made;
    }

    private List<Object> array(int depth) throws Malformed {
        int size = size();
        int end = at + size;
        List<Object> made = new ArrayList<>();
        while (at < end) {
            made.add(value(depth + 1));
        }
        if (at != end) {
            throw new Malformed();
        }
        return made;
    }

    /** A value in one of the types that HeaderText writes. */
    private Object value(int depth) throws Malformed {
        char kind = (char) data[taken(1)];
        if (depth > DEPTH_MAX) {
            throw new Malformed();
        }
        switch (kind) {
            case 'F':
                return table(depth);
            case 'A':
                return array(depth);
            case 'S':
            case 'x':
                int size = size();
                return UTF8String.fromBytes(data, taken(size), size);
            case 'V':
                return null;
            case 't':
                return data[taken(1)] != 0;
            case 'D':
                int places = data[taken(1)] & 0xff;
                return UTF8String.fromString(BigDecimal.valueOf(numbers.getInt(taken(Integer.BYTES)), places).toString());
            case 'T':
                long seconds = seconds();
                return seconds < 0 ? null : UTF8String.fromString(time(seconds));
            case 'b':
                return (long) data[taken(1)];
            case 'B':
                return data[taken(1)] & 0xffL;
            case 's':
                return (long) numbers.getShort(taken(Short.BYTES));
            case 'u':
                return numbers.getShort(taken(Short.BYTES)) & 0xffffL;
            case 'I':
                return (long) numbers.getInt(taken(Integer.BYTES));
            case 'i':
                return numbers.getInt(taken(Integer.BYTES)) & 0xffff_ffffL;
            case 'l':
            case 'L':
                return numbers.getLong(taken(Long.BYTES));
            case 'f':
                return (double) numbers.getFloat(taken(Float.BYTES));
            case 'd':
                return numbers.getDouble(taken(Double.BYTES));
            default:
                throw new Malformed();
        }
    }

    private static String time(long seconds) {
        return DateTimeFormatter.ISO_LOCAL_DATE_TIME.format(LocalDateTime.ofEpochSecond(seconds, 0, ZoneOffset.UTC)) + "+00:00";
    }

    /** These bytes are no property list. */
    private static final class Malformed extends Exception {
        private static final long serialVersionUID = 1L;

        Malformed() {
            super(null, null, false, false); // nobody sees it, so it needs no stack
        }
    }
}
