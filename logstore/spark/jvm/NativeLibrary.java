package logstore.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

import org.apache.spark.SparkEnv;

/**
 * Loads the native library from the jar. A JVM gives a library to one class loader only, so each loader gets a copy of its own,
 * and the file is deleted once it is loaded. A directory from which nothing may be run (noexec) is passed over.
 */
final class NativeLibrary {
    private static final String NAME = "liblogstore_scanner.so";

    private NativeLibrary() {}

    static void load() {
        String platform = platform(System.getProperty("os.name", ""), System.getProperty("os.arch", ""));
        byte[] library = library(platform);
        List<String> refused = new ArrayList<>();
        for (Path directory : directories()) {
            try {
                loadFrom(directory, library);
                return;
            } catch (IOException | UnsatisfiedLinkError error) {
                refused.add(directory + " (" + error.getMessage() + ")");
            }
        }
        throw new StoreException("StoreError", "the native library of the source logstore-jvm cannot be loaded from any of "
            + String.join(", ", refused) + ": name a directory that is no noexec mount with -Djava.io.tmpdir, or use the "
            + "Python source with engine='python'");
    }

    static String platform(String system, String machine) {
        String of = machine.toLowerCase(Locale.ROOT);
        String name = of.equals("amd64") || of.equals("x86_64") ? "x86_64" : of.equals("arm64") ? "aarch64" : of;
        return system.toLowerCase(Locale.ROOT).replace(' ', '_') + "-" + name;
    }

    private static byte[] library(String platform) {
        try (InputStream in = NativeLibrary.class.getResourceAsStream("/logstore/native/" + platform + "/" + NAME)) {
            if (in != null) {
                return in.readAllBytes();
            }
        } catch (IOException error) {
            throw new StoreException("StoreError", "the native library cannot be read from the jar of the source "
                + "logstore-jvm: " + error.getMessage());
        }
        throw new StoreException("StoreError", "the jar of the source logstore-jvm has no native library for " + platform
            + ", this machine: build the jar there with 'make jar', or use the Python source with engine='python'");
    }

    /** Where an unpacked library may be run from, the likeliest first. */
    private static Set<Path> directories() {
        Set<Path> found = new LinkedHashSet<>();
        found.add(Paths.get(System.getProperty("java.io.tmpdir", "/tmp")));
        SparkEnv env = SparkEnv.get();
        if (env != null) {
            for (String each : env.conf().get("spark.local.dir", "").split(",")) {
                add(found, each);
            }
        }
        for (String name : new String[] {"SPARK_LOCAL_DIRS", "LOCAL_DIRS"}) {
            for (String each : System.getenv().getOrDefault(name, "").split(",")) {
                add(found, each);
            }
        }
        add(found, System.getProperty("user.dir", ""));
        add(found, System.getProperty("user.home", ""));
        found.add(Paths.get("/dev/shm"));
        return found;
    }

    private static void add(Set<Path> found, String directory) {
        if (!directory.isBlank()) {
            found.add(Paths.get(directory.trim()));
        }
    }

    private static void loadFrom(Path directory, byte[] library) throws IOException {
        Path file = Files.createTempFile(directory, "logstore-scanner-", ".so");
        try {
            Files.write(file, library);
            System.load(file.toAbsolutePath().toString());
        } finally {
            Files.deleteIfExists(file);
        }
    }
}
