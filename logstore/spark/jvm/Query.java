package logstore.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** What Spark has asked of one scan. */
final class Query {
    static final long NO_LIMIT = Long.MAX_VALUE;

    final StructType schema;
    final Map<String, String> options;
    StructType columns;
    /** All conditions: those that Spark applies as well may still limit the range that is read. */
    List<Filter> filters = new ArrayList<>();
    /** Those of them that the scanner decides. */
    List<Filter> decided = new ArrayList<>();
    long limit = NO_LIMIT;
    /** How many values a task gives that only counts its rows; 0: it gives rows. */
    int counts;

    Query(StructType schema, Map<String, String> options) {
        this.schema = schema;
        this.options = options;
        this.columns = schema;
    }

    /** The arguments that calls of the planner have in common. */
    ObjectNode request() {
        ObjectNode made = Planner.request();
        made.set("options", Planner.options(options));
        return made.put("schema", schema.json());
    }
}
