package logstore.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A log, or several, with the options of one frame. */
final class LogTable implements SupportsRead {
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
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
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
