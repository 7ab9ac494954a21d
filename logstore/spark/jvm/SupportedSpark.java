package logstore.spark;

import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

import org.apache.spark.package$;

/** Refuses a Spark whose interfaces may differ from those that the jar was built with. */
final class SupportedSpark {
    private static final String OLDEST = "4.2";

    private SupportedSpark() {}

    static void check() {
        String built = built();
        String here = package$.MODULE$.SPARK_VERSION();
        boolean tooOld = major(here) < major(OLDEST) || major(here) == major(OLDEST) && minor(here) < minor(OLDEST);
        if (tooOld || major(here) != major(built)) {
            throw new StoreException("StoreError", "the jar of the source logstore-jvm was built with Spark " + built
                + " for Spark " + major(built) + " from " + OLDEST + " on, and this is Spark " + here + ": "
                + (tooOld ? "both sources need Spark " + OLDEST + " or newer"
                    : "use the jar of that version, or the Python source with engine='python'"));
        }
    }

    private static String built() {
        Properties found = new Properties();
        try (InputStream in = SupportedSpark.class.getResourceAsStream("/logstore/built-with.properties")) {
            found.load(in);
        } catch (IOException error) {
            throw new StoreException("StoreError", "the jar of the source logstore-jvm cannot be read: " + error.getMessage());
        }
        return found.getProperty("spark");
    }

    private static int major(String version) {
        return Integer.parseInt(version.split("\\.")[0]);
    }

    private static int minor(String version) {
        return Integer.parseInt(version.split("[.-]")[1]);
    }
}
