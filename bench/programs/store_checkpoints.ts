import { createRequire } from 'node:module';
import path from 'node:path';
import { type StateWorkload, statesOf, WARM_UP_STATES, WORKLOADS } from '../state_workloads.ts';
import { program } from './program.ts';

/**
 * Stores the states of a workload with a checkpointer of LangGraph, which runs in this process. The first states of each
 * sequence warm up.
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

interface Packages {
  readonly SqliteSaver: { fromConnString(file: string): Checkpointer };
  readonly PostgresSaver: { fromConnString(url: string, options: { schema: string }): Checkpointer };
  readonly emptyCheckpoint: () => object;
  readonly uuid6: (clockseq: number) => string;
}

const SQLITE = 'sqlite:';

await program(async (settings: StoreCheckpointsSettings): Promise<StoreCheckpointsFigures> => {
  const { packages, database, workload, threads, seed } = settings;
  const require = createRequire(path.join(path.resolve(packages), 'index.js'));
  const { emptyCheckpoint, uuid6 } = require('@langchain/langgraph-checkpoint') as Packages;
  const checkpointer = database.startsWith(SQLITE)
    ? (require('@langchain/langgraph-checkpoint-sqlite') as Packages).SqliteSaver.fromConnString(
        database.slice(SQLITE.length),
      )
    : (require('@langchain/langgraph-checkpoint-postgres') as Packages).PostgresSaver.fromConnString(database, {
        schema: 'langgraph',
      });
  await checkpointer.setup();
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
