import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;

/** The connector {@code nexmark-side}: a table of a key and a text, in memory, for lookup joins. */
public final class NexmarkSide implements DynamicTableSourceFactory {
    private static final ConfigOption<String> PATH = ConfigOptions.key("path").stringType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "nexmark-side";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(PATH);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        return new Source(context.getCatalogTable().getOptions().get("path"));
    }

    private record Source(String path) implements LookupTableSource {
        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            return LookupFunctionProvider.of(new Rows(path));
        }

        @Override
        public DynamicTableSource copy() {
            return this;
        }

        @Override
        public String asSummaryString() {
            return "nexmark-side";
        }
    }

    /** Looks a key up in the lines of a file, {@code key,text}. */
    public static final class Rows extends LookupFunction {
        private final String path;
        private transient Map<Long, RowData> rows;

        Rows(String path) {
            this.path = path;
        }

        @Override
        public void open(FunctionContext context) {
            rows = new HashMap<>();
            try {
                for (String line : Files.readAllLines(Path.of(path))) {
                    String[] parts = line.split(",", 2);
                    long key = Long.parseLong(parts[0]);
                    rows.put(key, GenericRowData.of(key, StringData.fromString(parts[1])));
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public Collection<RowData> lookup(RowData key) {
            RowData found = rows.get(key.getLong(0));
            return found == null ? List.of() : List.of(found);
        }
    }
}
