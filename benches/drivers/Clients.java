import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/** Client programs of `benches/drivers.py` in Java, by name: java -cp JARS Clients.java NAME. What they do is said in python_clients.py. */
public class Clients {
    static final String QUERY = "SELECT c FROM sbtest1 WHERE id = ?";
    static final String UPDATE = "UPDATE sbtest1 SET k = k + 1 WHERE id = 1";
    static final String ROWS = "SELECT id FROM sbtest1 WHERE id <= 2000";
    static final int[] KEYS = {1, 2, 3};
    static final int[] PREPARED_KEYS = {11, 12};

    interface Act {
        void run() throws Exception;
    }

    static void step(String name, Act act) throws Exception {
        long begun = System.nanoTime();
        act.run();
        byte[] text = ("page 0 " + begun + " " + System.nanoTime() + " mark " + name).getBytes();
        String[] address = System.getenv("HOWFAR_MARKS").split(":");
        try (DatagramSocket line = new DatagramSocket()) {
            line.send(new DatagramPacket(text, text.length, InetAddress.getByName(address[0]), Integer.parseInt(address[1])));
        }
    }

    static int read(ResultSet rows) throws SQLException {
        int found = 0;
        try (rows) {
            while (rows.next()) {
                found++;
            }
        }
        return found;
    }

    static Connection line;

    static void connect(String kind, String options) throws Exception {
        String address = System.getenv("DB_HOST") + ":" + System.getenv("DB_PORT") + "/" + System.getenv("DB_NAME");
        String url = "jdbc:" + kind + "://" + address + options;
        step("connect", () -> line = DriverManager.getConnection(url, System.getenv("DB_USER"), System.getenv("DB_PASSWORD")));
        System.out.println(line.getMetaData().getDriverVersion().replaceAll("^\\D*([\\d.]+).*", "$1"));
    }

    static void statements() throws Exception {
        step("queries", () -> {
            for (int key : KEYS) {
                try (Statement statement = line.createStatement()) {
                    read(statement.executeQuery(QUERY.replace("?", "" + key)));
                }
            }
        });
        step("prepared", () -> {
            try (PreparedStatement statement = line.prepareStatement(QUERY)) {
                for (int key : PREPARED_KEYS) {
                    statement.setInt(1, key);
                    read(statement.executeQuery());
                }
            }
        });
        step("transaction", () -> {
            line.setAutoCommit(false);
            line.createStatement().executeUpdate(UPDATE);
            line.commit();
        });
    }

    static void rows() throws Exception {
        step("rows", () -> {
            line.setAutoCommit(false);
            try (Statement statement = line.createStatement()) {
                statement.setFetchSize(100);
                int found = read(statement.executeQuery(ROWS));
                if (found != 2000) {
                    throw new IllegalStateException(found + " rows");
                }
            }
            line.commit();
        });
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "mariadb" -> connect("mariadb", "");
            case "mysql" -> connect("mysql", "?useServerPrepStmts=true");
            default -> connect("postgresql", "");
        }
        if (arguments[0].endsWith("-rows")) {
            rows();
        } else {
            statements();
        }
        line.close();
    }
}
