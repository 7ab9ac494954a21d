package logstore.spark;

import org.apache.spark.sql.internal.SQLConf;

/** The same under the name logstore, in a session that gave the name to this connector; the Python source may have it elsewhere. */
public final class NamedLogSource extends LogSource {
    private static final String ENGINE = "spark.logstore.engine";

    @Override
    public String shortName() {
        return SQLConf.get().getConfString(ENGINE, "").equals("jvm") ? "logstore" : "logstore-jvm-without-the-name";
    }
}
