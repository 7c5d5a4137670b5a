import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.enumerate.NonSplittingRecursiveEnumerator;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.util.Collector;

/**
 * Runs the two benchmarks of FLIP-327 on Flink, in a cluster within this process.
 *
 * <p>Arguments: {@code batch} or {@code streaming}; the parallelism; the slots, of which each has half a GiB of managed
 * memory; a directory for checkpoints; then requests of four arguments: a name; {@code reduce}, {@code reduce-end}, {@code cogroup} or {@code cogroup-end}; the folder of the
 * input, or those of both inputs with a comma between them; {@code check} or {@code -}. Those with {@code -end} have the
 * window that ends with the stream. Flink then runs the operators one after another, each in slots of its own.
 *
 * <p>Each request prints a line {@code RESULT name seconds cpuSeconds} and with {@code check} further a line {@code CHECK
 * name count sum}: the number of the last results of all keys, and the sum of {@code (value * 31 + key) mod 1000000007}.
 */
public final class Flip327Peer {
    private static final RowType ROW =
            RowType.of(new LogicalType[] {new BigIntType(), new BigIntType()}, new String[] {"key", "value"});
    private static final TypeInformation<Tuple2<Long, Long>> PAIR = Types.TUPLE(Types.LONG, Types.LONG);
    private static final long MODULUS = 1_000_000_007L;

    private Flip327Peer() {}

    public static void main(String[] arguments) throws Exception {
        boolean isBatch = arguments[0].equals("batch");
        int parallelism = Integer.parseInt(arguments[1]);
        Configuration conf = new Configuration();
        int slots = Integer.parseInt(arguments[2]);
        conf.setString("taskmanager.memory.managed.size", slots * 512 + "m");
        conf.setString("taskmanager.memory.network.min", "128m");
        conf.setString("taskmanager.memory.network.max", "128m");
        conf.setString("execution.checkpointing.dir", Path.of(arguments[3]).toUri().toString());
        conf.setString("pipeline.object-reuse", "true");
        if (!isBatch) {
            conf.setString("state.backend.type", "rocksdb");
        }
        MiniClusterConfiguration cluster =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(conf)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(slots)
                        .withRandomPorts()
                        .build();
        try (MiniCluster mini = new MiniCluster(cluster)) {
            mini.start();
            int port = mini.getRestAddress().get().getPort();
            for (int at = 4; at < arguments.length; at += 4) {
                StreamExecutionEnvironment env =
                        StreamExecutionEnvironment.createRemoteEnvironment("localhost", port, conf);
                env.setParallelism(parallelism);
                env.setRuntimeMode(isBatch ? RuntimeExecutionMode.BATCH : RuntimeExecutionMode.STREAMING);
                if (!isBatch && !arguments[at + 1].endsWith("-end")) {
                    env.enableCheckpointing(180_000); // Flink refuses it for the sorted inputs of the others
                }
                env.configure(new Configuration().set(RestartStrategyOptions.RESTART_STRATEGY, "none"));
                try {
                    run(env, arguments[at], arguments[at + 1], arguments[at + 2].split(","), arguments[at + 3]);
                } catch (Exception error) {
                    Throwable cause = error;
                    while (cause.getCause() != null && cause.getCause() != cause) {
                        cause = cause.getCause();
                    }
                    System.out.println("FAILED " + arguments[at] + " " + cause);
                }
            }
        }
        System.exit(0);
    }

    private static void run(
            StreamExecutionEnvironment env, String name, String what, String[] inputs, String check) throws Exception {
        DataStream<Tuple2<Long, Long>> result =
                switch (what) {
                    case "reduce" -> read(env, inputs[0]).keyBy(pair -> pair.f0).reduce(Flip327Peer::sum);
                    case "reduce-end" ->
                            read(env, inputs[0])
                                    .keyBy(pair -> pair.f0)
                                    .window(GlobalWindows.createWithEndOfStreamTrigger())
                                    .reduce(Flip327Peer::sum);
                    case "cogroup" -> grouped(env, inputs, TumblingEventTimeWindows.of(java.time.Duration.ofDays(1)));
                    case "cogroup-end" -> grouped(env, inputs, GlobalWindows.createWithEndOfStreamTrigger());
                    default -> throw new IllegalArgumentException(what);
                };
        if (check.equals("check")) {
            result.flatMap(new Checked()).sinkTo(new DiscardingSink<>());
        } else {
            result.sinkTo(new DiscardingSink<>());
        }
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        JobClient job = env.executeAsync(name);
        double submitted = (System.nanoTime() - began) / 1e9;
        JobExecutionResult done = job.getJobExecutionResult().get();
        // The client looks only every two seconds whether the job has ended.
        double seconds = submitted + done.getNetRuntime() / 1e3;
        if (check.equals("check")) {
            long count = done.getAccumulatorResult("count");
            long sum = done.getAccumulatorResult("sum");
            System.out.printf("CHECK %s %d %d%n", name, count, sum);
        }
        System.out.printf("RESULT %s %.3f %.3f%n", name, seconds, cpuSeconds() - cpu);
    }

    private static Tuple2<Long, Long> sum(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
        return Tuple2.of(one.f0, one.f1 + other.f1);
    }

    private static <W extends org.apache.flink.streaming.api.windowing.windows.Window> DataStream<Tuple2<Long, Long>>
            grouped(StreamExecutionEnvironment env, String[] inputs, WindowAssigner<Object, W> windows) {
        return read(env, inputs[0])
                .coGroup(read(env, inputs[1]))
                .where(pair -> pair.f0, Types.LONG)
                .equalTo(pair -> pair.f0, Types.LONG)
                .window(windows)
                .apply(new One(), PAIR);
    }

    /** Emits one row with a 1 for each key, as the proposal's function does. */
    private static final class One
            implements CoGroupFunction<Tuple2<Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        private static final Tuple2<Long, Long> RESULT = Tuple2.of(0L, 1L);

        @Override
        public void coGroup(
                Iterable<Tuple2<Long, Long>> left,
                Iterable<Tuple2<Long, Long>> right,
                Collector<Tuple2<Long, Long>> out) {
            out.collect(RESULT);
        }
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                        .getProcessCpuTime()
                / 1e9;
    }

    private static DataStream<Tuple2<Long, Long>> read(StreamExecutionEnvironment env, String folder) {
        InternalTypeInfo<RowData> info = InternalTypeInfo.of(ROW);
        ParquetColumnarRowInputFormat<FileSourceSplit> format =
                new ParquetColumnarRowInputFormat<>(
                        new org.apache.hadoop.conf.Configuration(), ROW, info, 2048, true, true);
        FileSource<RowData> source =
                FileSource.forBulkFileFormat(format, new org.apache.flink.core.fs.Path(folder))
                        .setFileEnumerator(NonSplittingRecursiveEnumerator::new)
                        .build();
        // All rows are of one day. The end of the input ends it.
        WatermarkStrategy<RowData> times = WatermarkStrategy.<RowData>noWatermarks().withTimestampAssigner((r, t) -> 0);
        return env.fromSource(source, times, folder, info)
                .map(row -> Tuple2.of(row.getLong(0), row.getLong(1)))
                .returns(PAIR)
                .filter(pair -> pair.f0 >= 0);
    }

    /** Counts the last results of all keys. Without keys, each result counts. */
    private static final class Checked extends RichFlatMapFunction<Tuple2<Long, Long>, Void> {
        private transient Map<Long, Long> last;
        private transient LongCounter count;
        private transient LongCounter sum;
        private transient long unkeyed;

        @Override
        public void open(OpenContext context) {
            last = new HashMap<>();
            count = getRuntimeContext().getLongCounter("count");
            sum = getRuntimeContext().getLongCounter("sum");
        }

        @Override
        public void flatMap(Tuple2<Long, Long> pair, Collector<Void> out) {
            if (pair == One.RESULT || pair.equals(One.RESULT)) {
                unkeyed++;
            } else {
                last.put(pair.f0, pair.f1);
            }
        }

        @Override
        public void close() {
            if (last == null) {
                return; // it was never opened
            }
            count.add(unkeyed + last.size());
            last.forEach((key, value) -> sum.add(Math.floorMod(value * 31 + key, MODULUS)));
        }
    }
}
