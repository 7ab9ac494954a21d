/** Prints what the connector says in this JVM: the reason why it cannot work, or null. */
public class Problem {
    public static void main(String[] given) throws Exception {
        Object source = Class.forName("logstore.spark.LogSource").getDeclaredConstructor().newInstance();
        System.out.println(source.getClass().getMethod("problem").invoke(source));
    }
}
