package logstore.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Collects what a query needs of a log. Each query has a builder of its own, so no condition reaches another query. */
final class LogScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownLimit, SupportsPushDownAggregates {
    private final Query query;

    LogScanBuilder(StructType schema, Map<String, String> options) {
        query = new Query(schema, options);
    }

    @Override
    public void pruneColumns(StructType required) {
        if (query.counts == 0) {
            query.columns = required;
        }
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
        query.filters = Arrays.asList(filters);
        JsonNode left = Analysis.told(() -> Planner.get().call("take",
            query.request().set("filters", Conditions.told(query.filters))));
        List<Filter> undecided = new ArrayList<>();
        query.decided = new ArrayList<>(query.filters);
        for (JsonNode number : left) {
            undecided.add(filters[number.intValue()]);
        }
        query.decided.removeAll(undecided);
        return undecided.toArray(new Filter[0]);
    }

    @Override
    public Filter[] pushedFilters() {
        return query.decided.toArray(new Filter[0]);
    }

    /** Each task gives at most so many rows; Spark takes as many of all. */
    @Override
    public boolean pushLimit(int limit) {
        if (query.counts > 0) {
            return false;
        }
        query.limit = limit;
        return true;
    }

    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    /** Counts of rows, which Spark asks for where the scanner decides all conditions; Spark adds those of the tasks. */
    @Override
    public boolean pushAggregation(Aggregation asked) {
        AggregateFunc[] functions = asked.aggregateExpressions();
        if (asked.groupByExpressions().length > 0 || functions.length == 0) {
            return false;
        }
        for (AggregateFunc one : functions) {
            if (!countsRows(one)) {
                return false;
            }
        }
        query.counts = functions.length;
        query.columns = new StructType();
        return true;
    }

    private boolean countsRows(AggregateFunc function) {
        if (!(function instanceof Count)) {
            return function instanceof CountStar;
        }
        Expression counted = ((Count) function).column();
        if (((Count) function).isDistinct() || !(counted instanceof NamedReference)) {
            return false;
        }
        String[] name = ((NamedReference) counted).fieldNames();
        for (StructField field : query.schema.fields()) {
            if (name.length == 1 && field.name().equals(name[0])) {
                return !field.nullable();
            }
        }
        return false;
    }

    @Override
    public Scan build() {
        return new LogScan(query);
    }
}
