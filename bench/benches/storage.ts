import process from 'node:process';
import type { Bench, Engine, Result, Run } from '../bench.ts';
import { compare, figure, median } from '../bench.ts';
import { databaseBytes } from '../database_size.ts';
import { runProgram } from '../processes.ts';
import type { StoreCheckpointsFigures, StoreCheckpointsSettings } from '../programs/store_checkpoints.ts';
import type { StoreStatesFigures, StoreStatesSettings } from '../programs/store_states.ts';
import type { StateWorkload } from '../state_workloads.ts';

const READ_BACK = 50;

interface Aims {
  readonly workload: StateWorkload;
  readonly streams?: number;
  readonly about: string;
  /** Of stored bytes divided by sent bytes. */
  readonly ratio: string;
  /** Of durable states per second, or of MB/s. */
  readonly value: { readonly unit: 'states/s' | 'MB/s'; readonly aim?: string };
  /** Of the 99th percentile of reading a state back, in milliseconds. */
  readonly restore?: string;
  /** Of the median time of an append by that of a null store. */
  readonly put?: string;
  /** Of durable states per second by those of LangGraph's checkpointer, on each engine. */
  readonly langGraph?: Readonly<Record<Engine, string>>;
}

/** A folder with LangGraph's packages, which are not installed with this project. */
const LANGGRAPH = process.env.LANGGRAPH_PACKAGES;

/** Sizes and speed of states that are stored with steps, each workload in a database of its own. */
export const storage: readonly Bench[] = [
  storageBench({
    workload: 'fle',
    about: '500 JSON states of 60 to 250 KB with 10 to 40 small changes each',
    ratio: '<= 0.01',
    value: { unit: 'states/s', aim: '>= 400' },
    restore: '<= 10',
    langGraph: { sqlite: '>= 1', postgres: '>= 1' },
  }),
  storageBench({
    workload: '93k',
    about: '200 JSON states of 93 KB with 20 changed fields each',
    ratio: '<= 0.012',
    value: { unit: 'states/s' },
    put: '<= 2',
    langGraph: { sqlite: '>= 1.5', postgres: '>= 3' },
  }),
  storageBench({
    workload: 'screenshots',
    about: '40 images of 0.2 to 1.5 MB, every third a repeat',
    ratio: '<= 0.7',
    value: { unit: 'MB/s', aim: '>= 60' },
  }),
  storageBench({
    workload: 'conversation',
    streams: 1,
    about: '200 JSON states of a conversation that grows to 18 MB, 1.8 GB in all',
    ratio: '<= 0.005',
    value: { unit: 'MB/s' },
  }),
];

function storageBench({ workload, about, ratio, value, restore, put, langGraph, streams = 4 }: Aims): Bench {
  const name = `storage-${workload}`;
  return {
    names: [
      name,
      `${name}-bytes`,
      `${name}-restore`,
      `${name}-put`,
      ...((langGraph && [`${name}-langgraph`, `${name}-langgraph-synced`, `${name}-langgraph-bytes`]) ?? []),
    ],
    about: `${about}: durable states over ${streams} streams; stored bytes by sent bytes; p99 of GetState; p50 of an append by that of a null store; with LANGGRAPH_PACKAGES, against LangGraph's checkpointer`,
    engines: ['sqlite', 'postgres'],
    async run(run) {
      const rounds: Round[] = [];
      for (let round = 0; round < run.rounds; round += 1) {
        run.showProgress(`round ${round + 1} of ${run.rounds}`);
        const others = langGraph && LANGGRAPH ? await measureLangGraph(run, workload, streams, round) : undefined;
        rounds.push({ ...(await measure(run, workload, streams, round)), langGraph: others });
      }
      const values = rounds.map(({ stored }) =>
        value.unit === 'MB/s' ? stored.bytesPerSecond / 1e6 : stored.statesPerSecond,
      );
      const cpu = median(rounds.map(({ cpuMs }) => cpuMs)).toFixed(1);
      const nullCpu = median(rounds.map(({ nullCpuMs }) => nullCpuMs)).toFixed(1);
      const ofSent: Result = {
        ...figure(
          run,
          { bench: `${name}-bytes`, unit: 'bytes/state' },
          rounds.map(({ stored, bytes }) => bytes / stored.states),
        ),
        ratio: median(rounds.map(({ stored, bytes }) => bytes / stored.sentBytes)),
        aim: ratio,
      };
      const puts = rounds.map(({ stored }) => stored.putP50Ms);
      const bare = rounds.map(({ nullPutP50Ms }) => nullPutP50Ms);
      return [
        figure(run, { bench: name, ...value, note: `${cpu} ms of CPU per MB; null store: ${nullCpu}` }, values),
        ofSent,
        figure(
          run,
          { bench: `${name}-restore`, unit: 'ms', ...(restore && { aim: restore }) },
          rounds.map(({ stored }) => stored.restoreP99Ms),
        ),
        {
          ...figure(run, { bench: `${name}-put`, unit: 'ms', ...(put && { aim: put }) }, puts),
          ceiling: median(bare),
          ratio: median(puts) / median(bare),
        },
        ...(langGraph === undefined ? [] : besideLangGraph(run, name, rounds, langGraph[run.engine])),
      ];
    },
  };
}

interface Round {
  readonly stored: StoreStatesFigures;
  readonly bytes: number;
  /** CPU time of the service and the database per MB sent, with the states that are read back. */
  readonly cpuMs: number;
  readonly nullCpuMs: number;
  readonly nullPutP50Ms: number;
  readonly langGraph: LangGraphRound | undefined;
}

interface LangGraphRound {
  readonly statesPerSecond: number;
  /** With each put durable, if that is not the default on this engine. */
  readonly syncedPerSecond: number | undefined;
  readonly bytesPerState: number;
}

/** Aim: bytes that LangGraph's checkpointer stores, divided by those of this store. */
const FEWER_BYTES = '>= 20';

function besideLangGraph(run: Run, name: string, rounds: readonly Round[], aim: string): Result[] {
  const others = rounds.flatMap(({ langGraph }) => langGraph ?? []);
  if (others.length === 0) return [];
  const own = rounds.map(({ stored }) => stored.statesPerSecond);
  const theirs = others.map(({ statesPerSecond }) => statesPerSecond);
  const theirBytes = others.map(({ bytesPerState }) => bytesPerState);
  const ownBytes = rounds.map(({ bytes, stored }) => bytes / stored.states);
  const synced = others.flatMap(({ syncedPerSecond }) => syncedPerSecond ?? []);
  const unit = 'states/s';
  return [
    compare(run, { bench: `${name}-langgraph`, unit, aim }, own, theirs),
    ...(synced.length > 0 ? [compare(run, { bench: `${name}-langgraph-synced`, unit, aim }, own, synced)] : []),
    compare(run, { bench: `${name}-langgraph-bytes`, unit: 'bytes/state', aim: FEWER_BYTES }, theirBytes, ownBytes),
  ];
}

async function measureLangGraph(
  run: Run,
  workload: StateWorkload,
  threads: number,
  round: number,
): Promise<LangGraphRound> {
  const store = async (isDurable: boolean) => {
    const database = await run.resources.database(run.engine);
    const settings: StoreCheckpointsSettings = {
      packages: LANGGRAPH!,
      database,
      workload,
      threads,
      seed: 1 + round * threads,
      isDurable,
    };
    const before = run.engine === 'sqlite' ? 0 : await databaseBytes(database);
    const { states, statesPerSecond } = await runProgram<StoreCheckpointsFigures>('store_checkpoints', settings);
    return { statesPerSecond, bytesPerState: ((await databaseBytes(database)) - before) / states };
  };
  const asShipped = await store(false);
  const syncedPerSecond = run.engine === 'sqlite' ? (await store(true)).statesPerSecond : undefined;
  return { ...asShipped, syncedPerSecond };
}

/** Each round has new databases, because states that are stored already cost nothing. */
async function measure(
  run: Run,
  workload: StateWorkload,
  streams: number,
  round: number,
): Promise<Omit<Round, 'langGraph'>> {
  const store = async (kind: 'real' | 'null', readBack: number) => {
    const database = await run.resources.emptySchema(run.engine);
    const server = await run.resources.server(kind, run.engine, database);
    const trajectories = await server.trajectories(streams);
    // With the first page of each table, which Postgres allocates when it first inserts into it.
    const before = await databaseBytes(database);
    const cpuBefore = server.cpuSeconds();
    const settings: StoreStatesSettings = {
      address: server.address,
      workload,
      trajectories,
      seed: 1 + round * streams,
      readBack,
    };
    const stored = await runProgram<StoreStatesFigures>('store_states', settings);
    const cpuMs = ((server.cpuSeconds() - cpuBefore) * 1000) / (stored.sentBytes / 1e6);
    await server.stop();
    return { stored, cpuMs, bytes: (await databaseBytes(database)) - before };
  };
  const bare = await store('null', 0);
  const real = await store('real', workload === 'conversation' ? 5 : READ_BACK);
  return { ...real, nullCpuMs: bare.cpuMs, nullPutP50Ms: bare.stored.putP50Ms };
}
