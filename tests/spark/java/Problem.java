import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Paths;
import java.util.Properties;

/**
 * Prints what the connector says in each case: the reason why it cannot work, or null. Arguments: its jar, then the cases. A
 * case is a property of the JVM, NAME=VALUE, or a directory that is searched before the jar. The connector is loaded anew for
 * each.
 */
public class Problem {
    public static void main(String[] given) throws Exception {
        URL jar = Paths.get(given[0]).toUri().toURL();
        Properties before = System.getProperties();
        for (int at = 1; at < given.length; at++) {
            String[] property = given[at].split("=", 2);
            boolean set = property.length == 2;
            System.setProperties((Properties) before.clone());
            if (set) {
                System.setProperty(property[0], property[1]);
            }
            URL[] found = set ? new URL[] {jar} : new URL[] {Paths.get(given[at]).toUri().toURL(), jar};
            try (URLClassLoader loader = new URLClassLoader(found)) {
                Object source = loader.loadClass("logstore.spark.LogSource").getDeclaredConstructor().newInstance();
                System.out.println(source.getClass().getMethod("problem").invoke(source));
            }
        }
    }
}
