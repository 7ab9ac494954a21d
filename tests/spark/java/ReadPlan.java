package logstore.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * Reads the ranges of plans as tasks do. Each line of its input has, between tabs, the file of a schema, files of plans in JSON,
 * and perhaps "ended-by-another": another thread then ends each task after its first batch, and the values of that batch are
 * read after that, with garbage collections between. Prints for each plan a line with the number of its ranges, then one for
 * each range, with the first column's values and the error, if any.
 */
final class ReadPlan {
    private static final String ENDED = "ended-by-another";

    private ReadPlan() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            readAll(line.split("\t"));
        }
    }

    private static void readAll(String[] given) throws Exception {
        StructType schema = (StructType) DataType.fromJson(Files.readString(Paths.get(given[0])));
        boolean ended = given[given.length - 1].equals(ENDED);
        for (int at = 1; at < given.length - (ended ? 1 : 0); at++) {
            Plan plan = new Plan(Json.MAPPER.readTree(Files.readString(Paths.get(given[at]))));
            System.out.println(plan.ranges.length);
            for (InputPartition one : plan.ranges) {
                System.out.println(lineOf(plan, (Plan.Range) one, schema, ended));
            }
        }
    }

    private static String lineOf(Plan plan, Plan.Range range, StructType schema, boolean ended) throws Exception {
        StringBuilder line = new StringBuilder();
        try (RangeReader reader = new RangeReader(plan.common, range, schema, Query.NO_LIMIT)) {
            while (reader.next()) {
                if (ended) {
                    Thread ending = new Thread(reader::close);
                    ending.start();
                    ending.join();
                    System.gc();
                }
                for (int row = 0; row < reader.count(); row++) {
                    line.append(reader.get().column(0).getLong(row)).append(' ');
                }
            }
        } catch (StoreException error) {
            line.append(error.getMessage());
        }
        return line.toString();
    }
}
