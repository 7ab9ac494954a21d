package logstore.spark;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Base64;
import java.util.List;
import java.util.Map;

import org.apache.spark.unsafe.types.UTF8String;

/** A header's value as text, character for character as rows/properties.py makes it with the JSON of Python. */
final class HeaderText {
    private static final int DIGITS_MAX = 17; // so many tell every double apart
    private static final int FIXED_LEAST = -4; // between these powers of ten no exponent is written
    private static final int FIXED_MOST = 16;

    private HeaderText() {}

    /** A string as it is, and bytes that are no UTF-8 in base64; anything else in JSON. */
    static UTF8String of(Object value) {
        if (value == null) {
            return null;
        }
        if (value instanceof UTF8String) {
            return plain((UTF8String) value);
        }
        StringBuilder made = new StringBuilder();
        put(made, value);
        return UTF8String.fromString(made.toString());
    }

    private static UTF8String plain(UTF8String text) {
        return text.isValid() ? text : UTF8String.fromBytes(Base64.getEncoder().encode(text.getBytes()));
    }

    private static void put(StringBuilder made, Object value) {
        if (value instanceof UTF8String) {
            putText(made, plain((UTF8String) value).toString());
        } else if (value instanceof Double) {
            made.append(number((Double) value));
        } else if (value instanceof Map) {
            String between = "";
            made.append('{');
            for (Map.Entry<?, ?> one : ((Map<?, ?>) value).entrySet()) {
                made.append(between);
                putText(made, one.getKey().toString());
                put(made.append(": "), one.getValue());
                between = ", ";
            }
            made.append('}');
        } else if (value instanceof List) {
            String between = "";
            made.append('[');
            for (Object one : (List<?>) value) {
                put(made.append(between), one);
                between = ", ";
            }
            made.append(']');
        } else {
            made.append(value); // null, a Boolean or a Long
        }
    }

    private static void putText(StringBuilder made, String text) {
        made.append('"');
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            switch (one) {
                case '"', '\\' -> made.append('\\').append(one);
                case '\n' -> made.append("\\n");
                case '\r' -> made.append("\\r");
                case '\t' -> made.append("\\t");
                case '\f' -> made.append("\\f");
                case '\b' -> made.append("\\b");
                default -> {
                    if (one < ' ') {
                        made.append(String.format("\\u%04x", (int) one));
                    } else {
                        made.append(one);
                    }
                }
            }
        }
        made.append('"');
    }

    /** A double as repr() of Python: the shortest digits that mean it, with an exponent where it is small or large. */
    static String number(double value) {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            return Double.toString(value); // NaN, Infinity and -Infinity, as in Python's JSON
        }
        String sign = Math.copySign(1, value) < 0 ? "-" : "";
        if (value == 0) {
            return sign + "0.0";
        }
        BigDecimal shortest = shortest(Math.abs(value)).stripTrailingZeros();
        String digits = shortest.unscaledValue().toString();
        int point = digits.length() - shortest.scale(); // so many digits stand before the point
        if (point <= FIXED_LEAST || point > FIXED_MOST) {
            int exponent = point - 1;
            String rest = digits.length() > 1 ? "." + digits.substring(1) : "";
            return sign + digits.charAt(0) + rest + String.format("e%s%02d", exponent < 0 ? "-" : "+", Math.abs(exponent));
        }
        if (point <= 0) {
            return sign + "0." + "0".repeat(-point) + digits;
        }
        if (point >= digits.length()) {
            return sign + digits + "0".repeat(point - digits.length()) + ".0";
        }
        return sign + digits.substring(0, point) + "." + digits.substring(point);
    }

    /** Below a power of two the doubles are closer together than above it, so the nearest decimal may miss where the next one hits. */
    private static BigDecimal shortest(double value) {
        BigDecimal exact = new BigDecimal(value);
        for (int digits = 1; digits < DIGITS_MAX; digits++) {
            for (RoundingMode mode : new RoundingMode[] {RoundingMode.HALF_EVEN, RoundingMode.UP}) {
                BigDecimal rounded = exact.round(new MathContext(digits, mode));
                if (Double.parseDouble(rounded.toString()) == value) {
                    return rounded;
                }
            }
        }
        return exact.round(new MathContext(DIGITS_MAX, RoundingMode.HALF_EVEN));
    }
}
