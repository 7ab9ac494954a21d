package logstore.spark;

import java.sql.Timestamp;
import java.time.Instant;
import java.util.List;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/** The conditions of a query as JSON. The planner decides which ones the scanner applies. */
final class Conditions {
    private Conditions() {}

    static ArrayNode told(List<Filter> filters) {
        ArrayNode made = Json.MAPPER.createArrayNode();
        for (Filter one : filters) {
            ObjectNode told = made.addObject();
            told.put("name", one.getClass().getSimpleName());
            if (!put(told, one)) {
                told.removeAll();
                told.put("name", "");
            }
        }
        return made;
    }

    /** False: a condition that has no form in JSON, which is left to Spark. */
    private static boolean put(ObjectNode told, Filter one) {
        if (one instanceof EqualTo) {
            return put(told, ((EqualTo) one).attribute(), ((EqualTo) one).value());
        }
        if (one instanceof GreaterThan) {
            return put(told, ((GreaterThan) one).attribute(), ((GreaterThan) one).value());
        }
        if (one instanceof GreaterThanOrEqual) {
            return put(told, ((GreaterThanOrEqual) one).attribute(), ((GreaterThanOrEqual) one).value());
        }
        if (one instanceof LessThan) {
            return put(told, ((LessThan) one).attribute(), ((LessThan) one).value());
        }
        if (one instanceof LessThanOrEqual) {
            return put(told, ((LessThanOrEqual) one).attribute(), ((LessThanOrEqual) one).value());
        }
        if (one instanceof IsNotNull) {
            return column(told, ((IsNotNull) one).attribute());
        }
        if (one instanceof In) {
            ArrayNode values = told.putArray("values");
            for (Object each : ((In) one).values()) {
                if (!add(values, each)) {
                    return false;
                }
            }
            return column(told, ((In) one).attribute());
        }
        return false;
    }

    private static boolean put(ObjectNode told, String attribute, Object value) {
        ArrayNode one = Json.MAPPER.createArrayNode();
        if (!add(one, value)) {
            return false;
        }
        told.set("value", one.get(0));
        return column(told, attribute);
    }

    /** The columns of a log have plain names; a name with a dot or a quote is inside of a struct. */
    private static boolean column(ObjectNode told, String attribute) {
        told.putArray("column").add(attribute);
        return attribute.indexOf('.') < 0 && attribute.indexOf('`') < 0;
    }

    private static boolean add(ArrayNode values, Object value) {
        if (value == null) {
            values.addNull();
        } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
            values.add(((Number) value).longValue());
        } else if (value instanceof Boolean) {
            values.add((Boolean) value);
        } else if (value instanceof String) {
            values.add((String) value);
        } else if (value instanceof Timestamp || value instanceof Instant) {
            Instant time = value instanceof Instant ? (Instant) value : ((Timestamp) value).toInstant();
            long us = Math.addExact(Math.multiplyExact(time.getEpochSecond(), 1_000_000L), time.getNano() / 1000);
            values.addObject().put("us", us);
        } else {
            return false;
        }
        return true;
    }
}
