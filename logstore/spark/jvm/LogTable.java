package logstore.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A log, or several, with the options of one frame. */
final class LogTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final Map<String, String> options;

    LogTable(StructType schema, Map<String, String> options) {
        this.schema = schema;
        this.options = options;
    }

    @Override
    public String name() {
        return "logstore-jvm";
    }

    @Override
    @SuppressWarnings("deprecation") // the newer columns() have no form for an inferred schema
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        // With those of writing, a write is refused in the words of the Python source.
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return Analysis.told(() -> {
            Planner.get().call("write", Planner.request());
            throw new IllegalStateException("the planner refuses every write");
        });
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        Map<String, String> all = new HashMap<>(options);
        given.asCaseSensitiveMap().forEach((name, value) -> {
            all.keySet().removeIf(name::equalsIgnoreCase);
            all.put(name, value);
        });
        return new LogScanBuilder(schema, all);
    }
}
