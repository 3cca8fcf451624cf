import { createRequire } from 'node:module';
import path from 'node:path';
import process from 'node:process';
import { countExternalMemoryAsHeap } from '../../src/external_memory.ts';
import { type StateWorkload, statesOf, WARM_UP_STATES, WORKLOADS } from '../state_workloads.ts';
import { program } from './program.ts';

/**
 * Stores the states of a workload with a checkpointer of LangGraph, which runs in this process. The first states of
 * each sequence warm up.
 */
export interface StoreCheckpointsSettings {
  /** A folder in which the packages are installed. */
  readonly packages: string;
  /** `sqlite:PATH`, or the URL of a Postgres. */
  readonly database: string;
  readonly workload: StateWorkload;
  /** Each stores a sequence of its own, one checkpoint after the other. */
  readonly threads: number;
  readonly seed: number;
  /**
   * Whether a put on SQLite survives a power failure, as an append to this service does. The package's driver builds
   * SQLite with `synchronous = normal` in WAL mode, which syncs at checkpoints only. On Postgres, each put is durable.
   */
  readonly isDurable: boolean;
}

export interface StoreCheckpointsFigures {
  readonly states: number;
  /** Of the states after the first ones. */
  readonly statesPerSecond: number;
}

/** The part of the interface of LangGraph's checkpointers that is used here. */
interface Checkpointer {
  setup(): Promise<void> | void;
  put(config: object, checkpoint: object, metadata: object, newVersions: object): Promise<object>;
}

interface SqliteCheckpointer extends Checkpointer {
  readonly db: { pragma(text: string): unknown };
}

interface Packages {
  readonly SqliteSaver: { fromConnString(file: string): SqliteCheckpointer };
  readonly PostgresSaver: { fromConnString(url: string, options: { schema: string }): Checkpointer };
  readonly emptyCheckpoint: () => object;
  readonly uuid6: (clockseq: number) => string;
}

const SQLITE = 'sqlite:';

countExternalMemoryAsHeap(process.versions.node);
await program(async (settings: StoreCheckpointsSettings): Promise<StoreCheckpointsFigures> => {
  const { packages, database, workload, threads, seed, isDurable } = settings;
  const require = createRequire(path.join(path.resolve(packages), 'index.js'));
  const { emptyCheckpoint, uuid6 } = require('@langchain/langgraph-checkpoint') as Packages;
  const open = async (): Promise<Checkpointer> => {
    if (database.startsWith(SQLITE)) {
      const { SqliteSaver } = require('@langchain/langgraph-checkpoint-sqlite') as Packages;
      const saver = SqliteSaver.fromConnString(database.slice(SQLITE.length));
      await saver.setup();
      if (isDurable) saver.db.pragma('synchronous = full');
      return saver;
    }
    const { PostgresSaver } = require('@langchain/langgraph-checkpoint-postgres') as Packages;
    const saver = PostgresSaver.fromConnString(database, { schema: 'langgraph' });
    await saver.setup();
    return saver;
  };
  const checkpointer = await open();
  // LangGraph gets objects, so parsing is not measured.
  const sequences = Array.from({ length: threads }, (_, i) =>
    Array.from(statesOf(workload, seed + i), (data): unknown => JSON.parse(data.toString())),
  );
  const configs = sequences.map((_, i): object => ({ configurable: { thread_id: `${i}`, checkpoint_ns: '' } }));
  const store = async (sequence: readonly unknown[], i: number, from: number, to: number) => {
    for (let n = from; n < to; n += 1) {
      const versions = { env: n + 1 };
      const checkpoint = {
        ...emptyCheckpoint(),
        id: uuid6(n),
        channel_values: { env: sequence[n] },
        channel_versions: versions,
      };
      configs[i] = await checkpointer.put(configs[i]!, checkpoint, { source: 'loop', step: n, parents: {} }, versions);
    }
  };
  const { states } = WORKLOADS[workload];
  await Promise.all(sequences.map((sequence, i) => store(sequence, i, 0, WARM_UP_STATES)));
  const begun = performance.now();
  await Promise.all(sequences.map((sequence, i) => store(sequence, i, WARM_UP_STATES, states)));
  const seconds = (performance.now() - begun) / 1000;
  return { states: states * threads, statesPerSecond: ((states - WARM_UP_STATES) * threads) / seconds };
});
