package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

/** The one JSON mapper, with the few conversions that the plans need. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {}

    static long[] longs(JsonNode node) {
        if (node == null || node.isNull()) {
            return null;
        }
        long[] made = new long[node.size()];
        for (int i = 0; i < made.length; i++) {
            made[i] = node.get(i).longValue();
        }
        return made;
    }

    static String[] texts(JsonNode node) {
        String[] made = new String[node.size()];
        for (int i = 0; i < made.length; i++) {
            made[i] = node.get(i).textValue();
        }
        return made;
    }
}
