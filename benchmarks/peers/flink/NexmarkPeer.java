import java.io.BufferedWriter;
import java.io.IOException;
import java.io.Serializable;
import java.lang.management.ManagementFactory;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.UUID;

import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.src.enumerate.NonSplittingRecursiveEnumerator;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * Runs SQL statements of Nexmark on Flink, in a cluster within this process.
 *
 * <p>Arguments: {@code batch} or {@code streaming}; a state backend; the parallelism; a directory for checkpoints; the
 * file of the statements' tables, with {@code VIEW name: SELECT …} lines; then requests. A request is five arguments: a
 * name, the file with the statement, the directories of events, separated by commas, the file of the side input, and the
 * directory for the result or {@code -}, which drops it.
 *
 * <p>Each request prints a line {@code RESULT name seconds cpuSeconds} or {@code FAILED name why}. Seconds are from
 * planning to the end of the job. A result's file has a line for each change: {@code +} or {@code -}, then the fields,
 * separated by tabs.
 */
public final class NexmarkPeer {
    private static final List<String> LONGS =
            List.of("id", "initialBid", "reserve", "seller", "category", "auction", "bidder", "price");
    private static final DataType TEXT = DataTypes.STRING();
    private static final DataType LONG = DataTypes.BIGINT();
    private static final DataType TIME = DataTypes.TIMESTAMP(3);

    private static final DataType EVENT =
            DataTypes.ROW(
                    DataTypes.FIELD("event_type", DataTypes.INT()),
                    DataTypes.FIELD("person", struct("id,name,emailAddress,creditCard,city,state,dateTime,extra")),
                    DataTypes.FIELD(
                            "auction",
                            struct(
                                    "id,itemName,description,initialBid,reserve,dateTime,expires,seller,category,"
                                            + "extra")),
                    DataTypes.FIELD("bid", struct("auction,bidder,price,channel,url,dateTime,extra")));

    private NexmarkPeer() {}

    private static DataType struct(String names) {
        return DataTypes.ROW(
                Arrays.stream(names.split(","))
                        .map(
                                name ->
                                        DataTypes.FIELD(
                                                name,
                                                LONGS.contains(name)
                                                        ? LONG
                                                        : name.equals("dateTime") || name.equals("expires")
                                                                ? TIME
                                                                : TEXT))
                        .toArray(DataTypes.Field[]::new));
    }

    public static void main(String[] arguments) throws Exception {
        boolean isBatch = arguments[0].equals("batch");
        int parallelism = Integer.parseInt(arguments[2]);
        Configuration conf = configuration(isBatch, arguments[1], arguments[3]);
        List<String> views = Files.readAllLines(Path.of(arguments[4]));
        MiniClusterConfiguration cluster =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(conf)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(parallelism)
                        .withRandomPorts()
                        .build();
        try (MiniCluster mini = new MiniCluster(cluster)) {
            mini.start();
            int port = mini.getRestAddress().get().getPort();
            for (int at = 5; at < arguments.length; at += 5) {
                String name = arguments[at];
                try {
                    StreamExecutionEnvironment env =
                            StreamExecutionEnvironment.createRemoteEnvironment("localhost", port, conf);
                    env.setParallelism(parallelism);
                    env.setRuntimeMode(isBatch ? RuntimeExecutionMode.BATCH : RuntimeExecutionMode.STREAMING);
                    String text = Files.readString(Path.of(arguments[at + 1]));
                    run(env, views, name, text, arguments[at + 2], arguments[at + 3], arguments[at + 4]);
                } catch (Throwable error) {
                    Throwable cause = error;
                    while (cause.getCause() != null && cause.getCause() != cause) {
                        cause = cause.getCause();
                    }
                    String why = cause.getClass().getSimpleName() + ": " + cause.getMessage();
                    System.out.println("FAILED " + name + " " + why.replaceAll("\\s+", " "));
                    if (System.getenv("NEXMARK_TRACE") != null) {
                        error.printStackTrace();
                    }
                }
            }
        }
        System.exit(0);
    }

    private static Configuration configuration(boolean isBatch, String backend, String checkpoints) {
        Configuration conf = new Configuration();
        conf.setString("taskmanager.memory.managed.size", "1g");
        conf.setString("taskmanager.memory.network.min", "128m");
        conf.setString("taskmanager.memory.network.max", "128m");
        conf.setString("execution.checkpointing.dir", Path.of(checkpoints).toUri().toString());
        conf.setString("table.local-time-zone", "UTC");
        if (!isBatch) {
            // As the public benchmark sets them.
            conf.setString("state.backend.type", backend);
            conf.setString("execution.checkpointing.interval", "180s");
            conf.setString("table.exec.mini-batch.enabled", "true");
            conf.setString("table.exec.mini-batch.allow-latency", "2s");
            conf.setString("table.exec.mini-batch.size", "50000");
            conf.setString("table.optimizer.distinct-agg.split.enabled", "true");
        }
        return conf;
    }

    private static void run(
            StreamExecutionEnvironment env,
            List<String> views,
            String name,
            String text,
            String events,
            String side,
            String output)
            throws Exception {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        Schema.Builder schema = Schema.newBuilder();
        for (DataTypes.Field field : fields(EVENT)) {
            schema.column(field.getName(), field.getDataType());
        }
        schema.columnByExpression(
                "dateTime",
                "CASE event_type WHEN 0 THEN person.`dateTime` WHEN 1 THEN auction.`dateTime` ELSE bid.`dateTime` END");
        schema.watermark("dateTime", "`dateTime` - INTERVAL '4' SECOND");
        tables.createTemporaryView("events", read(env, events), schema.build());
        if (text.contains(" side ")) {
            tables.executeSql(
                    "CREATE TEMPORARY TABLE side (`key` BIGINT, `value` STRING) WITH ('connector' = 'nexmark-side', "
                            + "'path' = '"
                            + side
                            + "')");
        }
        tables.createTemporarySystemFunction("count_char", CountChar.class);
        for (String view : views) {
            String[] parts = view.split(": ", 2);
            tables.executeSql("CREATE TEMPORARY VIEW `" + parts[0] + "` AS " + parts[1]);
        }
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        Table result = tables.sqlQuery(text);
        long submitted;
        JobExecutionResult done;
        if (output.equals("-")) {
            TableDescriptor dropped =
                    TableDescriptor.forConnector("blackhole")
                            .schema(
                                    Schema.newBuilder()
                                            .fromRowDataType(
                                                    result.getResolvedSchema().toPhysicalRowDataType())
                                            .build())
                            .build();
            JobClient job = result.executeInsert(dropped).getJobClient().orElseThrow();
            submitted = System.nanoTime();
            done = job.getJobExecutionResult().get();
        } else {
            Files.createDirectories(Path.of(output));
            tables.toChangelogStream(result).flatMap(new Written(output)).sinkTo(new DiscardingSink<>());
            JobClient job = env.executeAsync(name);
            submitted = System.nanoTime();
            done = job.getJobExecutionResult().get();
        }
        // The client looks only every two seconds whether the job has ended.
        double seconds = (submitted - began) / 1e9 + done.getNetRuntime() / 1e3;
        System.out.printf("RESULT %s %.3f %.3f%n", name, seconds, cpuSeconds() - cpu);
    }

    private static List<DataTypes.Field> fields(DataType row) {
        List<DataTypes.Field> found = new ArrayList<>();
        List<String> names = DataType.getFieldNames(row);
        List<DataType> types = DataType.getFieldDataTypes(row);
        for (int i = 0; i < names.size(); i++) {
            found.add(DataTypes.FIELD(names.get(i), types.get(i)));
        }
        return found;
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                        .getProcessCpuTime()
                / 1e9;
    }

    private static DataStream<RowData> read(StreamExecutionEnvironment env, String folders) {
        RowType row = (RowType) EVENT.getLogicalType();
        InternalTypeInfo<RowData> info = InternalTypeInfo.of(row);
        ParquetColumnarRowInputFormat<FileSourceSplit> format =
                new ParquetColumnarRowInputFormat<>(
                        new org.apache.hadoop.conf.Configuration(), row, info, 2048, true, true);
        org.apache.flink.core.fs.Path[] paths =
                Arrays.stream(folders.split(","))
                        .map(org.apache.flink.core.fs.Path::new)
                        .toArray(org.apache.flink.core.fs.Path[]::new);
        FileSource<RowData> source =
                FileSource.forBulkFileFormat(format, paths)
                        .setFileEnumerator(NonSplittingRecursiveEnumerator::new)
                        .setSplitAssigner(Ordered::new)
                        .build();
        return env.fromSource(source, WatermarkStrategy.noWatermarks(), "events", info);
    }

    /** Gives out files in the order of their names. Otherwise a watermark would make rows late. */
    private static final class Ordered implements FileSplitAssigner {
        private final PriorityQueue<FileSourceSplit> left =
                new PriorityQueue<>(Comparator.comparing((FileSourceSplit split) -> split.path().toString()));

        Ordered(Collection<FileSourceSplit> splits) {
            left.addAll(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return Optional.ofNullable(left.poll());
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> splits) {
            left.addAll(splits);
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return left;
        }
    }

    /** Writes changes as lines of text. */
    private static final class Written extends RichFlatMapFunction<Row, String> implements Serializable {
        private final String folder;
        private transient BufferedWriter writer;

        Written(String folder) {
            this.folder = folder;
        }

        @Override
        public void open(OpenContext context) throws Exception {
            writer = Files.newBufferedWriter(Path.of(folder, UUID.randomUUID() + ".txt"));
        }

        @Override
        public void flatMap(Row row, Collector<String> out) throws IOException {
            switch (row.getKind()) {
                case INSERT, UPDATE_AFTER -> writer.write("+");
                default -> writer.write("-");
            }
            for (int i = 0; i < row.getArity(); i++) {
                writer.write('\t');
                writer.write(text(row.getField(i)));
            }
            writer.write('\n');
        }

        private static String text(Object value) {
            if (value == null) {
                return "\\N";
            }
            if (value instanceof LocalDateTime time) {
                return Long.toString(time.toInstant(ZoneOffset.UTC).toEpochMilli());
            }
            if (value instanceof Instant time) {
                return Long.toString(time.toEpochMilli());
            }
            return value instanceof BigDecimal number ? number.toPlainString() : value.toString();
        }

        @Override
        public void close() throws IOException {
            if (writer != null) {
                writer.close();
            }
        }
    }

    /** How often a text has a letter. */
    public static final class CountChar extends ScalarFunction {
        public long eval(@DataTypeHint("STRING") StringData text, @DataTypeHint("STRING") StringData letter) {
            long found = 0;
            if (text != null) {
                byte wanted = letter.toBytes()[0];
                for (byte each : text.toBytes()) {
                    found += each == wanted ? 1 : 0;
                }
            }
            return found;
        }
    }
}
