package logstore.spark;

import java.nio.file.Files;
import java.nio.file.Paths;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * Reads the ranges of a plan, whose JSON and schema are in the files of the arguments, as a task does: one line for each range
 * with the first column's values, then the error, if any. With a third argument another thread ends each task after its first
 * batch, and the values of that batch are read after that, with garbage collections between.
 */
final class ReadPlan {
    private ReadPlan() {}

    public static void main(String[] given) throws Exception {
        Plan plan = new Plan(Json.MAPPER.readTree(Files.readString(Paths.get(given[0]))));
        StructType schema = (StructType) DataType.fromJson(Files.readString(Paths.get(given[1])));
        for (InputPartition one : plan.ranges) {
            StringBuilder line = new StringBuilder();
            try (RangeReader reader = new RangeReader(plan.common, (Plan.Range) one, schema, Query.NO_LIMIT)) {
                while (reader.next()) {
                    if (given.length > 2) {
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
            System.out.println(line);
        }
    }
}
