package logstore.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes the readers of tasks, in executors. */
final class RangeReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final Plan.Common common;
    private final StructType columns;
    private final long limit;
    private final int counts;

    RangeReaderFactory(Plan.Common common, StructType columns, long limit, int counts) {
        this.common = common;
        this.columns = columns;
        this.limit = limit;
        this.counts = counts;
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return counts == 0;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        return new CountReader(partition instanceof Plan.Range ? reader((Plan.Range) partition) : null, counts);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        return reader((Plan.Range) partition);
    }

    private RangeReader reader(Plan.Range range) {
        return new RangeReader(common, range, columns, limit);
    }
}
