package logstore.spark;

import java.io.IOException;
import java.util.Arrays;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;

/** One row with the number of rows of a range, as often as it was asked for. */
final class CountReader implements PartitionReader<InternalRow> {
    private final RangeReader rows; // null: no range
    private final int counts;
    private InternalRow row;

    CountReader(RangeReader rows, int counts) {
        this.rows = rows;
        this.counts = counts;
    }

    @Override
    public boolean next() {
        if (row != null) {
            return false;
        }
        long count = 0;
        while (rows != null && rows.next()) {
            count += rows.count();
        }
        Object[] values = new Object[counts];
        Arrays.fill(values, count);
        row = new GenericInternalRow(values);
        return true;
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public void close() throws IOException {
        if (rows != null) {
            rows.close();
        }
    }
}
