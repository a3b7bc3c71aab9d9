// The fitted model in the page: `howfarWhatIf(base, settings)` gives { tps, limits, cycle_s, knee }. No DOM, no dependency.
// The same arithmetic as analysis/model/what_if.py, wire.py and queueing.py, in the same order; shared vectors hold them together.
"use strict";

const howfarWhatIf = (() => {
  const SEGMENT_BYTES = 1448, HEADER_BYTES = 90, TLS_RECORD_BYTES = 16384, TLS_BYTES = 22;
  const PIECE_BYTES = 16384, BUSY = 0.9;
  const NONE = { ratio_to_client: 1, ratio_to_server: 1, client_byte_s: 0, server_byte_s: 0 };

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  function carriedBytes(message, ratio, tls) {
    let carried = message;
    if (ratio !== null) carried *= ratio;
    if (tls) carried += TLS_BYTES * Math.ceil(carried / TLS_RECORD_BYTES);
    return carried;
  }

  const headedBytes = (carried) => carried + HEADER_BYTES * Math.ceil(carried / SEGMENT_BYTES);

  // A station: demand_s of a transaction in `visits` parts of mean_s, and what an arrival finds left of one.
  function station(name, visits, mean_s, square_s2) {
    return { name, visits, mean_s, demand_s: visits * mean_s, left_s: mean_s ? square_s2 / (2 * mean_s) : 0 };
  }

  function processors(name, visits, demand_s, count) {
    const mean = demand_s / count / visits;
    return {
      station: station(name, visits, mean, 2 * mean * mean),
      delay_s: (demand_s * Math.max(count - 1, 0)) / count,
    };
  }

  function line(name, messages, rate_bps) {
    const services = messages.map((m) => (8 * headedBytes(m)) / rate_bps);
    const visits = services.length;
    return station(name, visits, sum(services) / visits, sum(services.map((s) => s * s)) / visits);
  }

  function network(base, settings) {
    const compressed = settings.compression !== "off";
    const how = base.compression.find((each) => each.algorithm === settings.compression) || NONE;
    const replies = base.replies_bytes.map((m) => carriedBytes(m, compressed ? how.ratio_to_client : null, settings.tls));
    const requests = base.requests_bytes.map((m) => carriedBytes(m, compressed ? how.ratio_to_server : null, settings.tls));
    const plain = sum(base.replies_bytes) + sum(base.requests_bytes);
    const carried = sum(replies) + sum(requests);
    // What was not measured is null, counts as nothing here, and is not offered by the page.
    const tls_s = settings.tls ? carried * base.tls_byte_s : 0;
    let turns = base.turns;
    let client_s = base.client_cpu_s + plain * how.client_byte_s + tls_s;
    let server_s = base.server_cpu_s + plain * how.server_byte_s + tls_s;
    if (settings.connect_each) {
      turns += base.connect_turns + (settings.tls ? base.tls_connect_turns : 0);
      client_s += base.connect_client_s + (settings.tls ? base.tls_connect_client_s : 0);
      server_s += base.connect_server_s + (settings.tls ? base.tls_connect_server_s : 0);
    }
    client_s = Math.max(client_s, 0);
    server_s = Math.max(server_s, 0);
    const visits = Math.max(base.turns, 1);
    const cpus = base.shared_cpu
      ? [processors("CPU of both", 2 * visits, client_s + server_s, base.server_cpus)]
      : [
          processors("client CPU", visits, client_s, base.client_cpus),
          processors("server CPU", visits, server_s, base.server_cpus),
        ];
    const stations = cpus.map((each) => each.station);
    let delay_s = sum(cpus.map((each) => each.delay_s));
    if (settings.rate_bps !== null) {
      stations.push(line("link to client", replies, settings.rate_bps));
      stations.push(line("link to server", requests, settings.rate_bps));
      delay_s -= sentMeanwhile(base.replies_bytes, replies, server_s, settings.rate_bps);
    }
    delay_s += base.think_s + turns * settings.rtt_s;
    // However much goes on at the same time, a transaction takes as long as its longest part.
    const demands = stations.map((each) => each.demand_s);
    return { delay_s: Math.max(delay_s, Math.max(...demands) - sum(demands)), stations };
  }

  // A server sends a long reply in pieces while it reads on: but for the first piece, link and server have it at the same time.
  function sentMeanwhile(messages, replies, server_s, rate_bps) {
    const total = sum(messages);
    return sum(messages.map((message, number) => {
      if (message <= PIECE_BYTES) return 0;
      const both = Math.min((8 * headedBytes(replies[number])) / rate_bps, (server_s * message) / total);
      return (1 - PIECE_BYTES / message) * both;
    }));
  }

  function ceiling(stations) {
    const busiest = Math.max(...stations.map((each) => each.demand_s));
    return busiest ? 1 / busiest : Infinity;
  }

  // Mean value analysis, one connection after the other; gives the throughput at `connections`.
  function solve(delay_s, stations, connections) {
    const highest = ceiling(stations);
    const found = stations.map(() => 0), serving = stations.map(() => 0);
    const residence = stations.map(() => 0);
    let throughput = 0;
    for (let n = 1; n <= connections; n += 1) {
      for (let k = 0; k < stations.length; k += 1) {
        const at = stations[k];
        const wait = Math.max(found[k] - serving[k], 0) * at.mean_s + serving[k] * at.left_s;
        // While it makes one round, no other connection goes before it with more than one transaction.
        residence[k] = Math.min(at.demand_s + at.visits * wait, n * at.demand_s);
      }
      throughput = n / Math.max(delay_s + sum(residence), n / highest);
      for (let k = 0; k < stations.length; k += 1) {
        found[k] = throughput * residence[k];
        serving[k] = Math.min(throughput * stations[k].demand_s, 1);
      }
    }
    return throughput;
  }

  return (base, settings) => {
    const { delay_s, stations } = network(base, settings);
    const tps = solve(delay_s, stations, settings.threads);
    let busiest = stations[0], most = -1;
    for (const each of stations) {
      const used = Math.min(tps * each.demand_s, 1);
      if (used > most) [busiest, most] = [each, used];
    }
    return {
      tps,
      limits: most >= BUSY ? busiest.name : "latency",
      cycle_s: settings.threads / tps,
      knee: (delay_s + sum(stations.map((each) => each.demand_s))) * ceiling(stations),
    };
  };
})();

if (typeof module !== "undefined") module.exports = { howfarWhatIf };
