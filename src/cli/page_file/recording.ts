import { once } from 'node:events';
import { createGzip } from 'node:zlib';
import { create, type DescMessage, type MessageShape, toBinary } from '@bufbuild/protobuf';
import { BinaryWriter } from '@bufbuild/protobuf/wire';
import { AnySchema, anyPack } from '@bufbuild/protobuf/wkt';
import {
  GetRolloutResponseSchema,
  ListValidationOverridesResponseSchema,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { CompareRunsResponseSchema, ReadMetricsResponseSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { RunChangesSchema } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  GetTreeResponseSchema,
  ReadTrajectoriesResponseSchema,
  StepScope,
  type TreeNode,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../../client/index.ts';
import { CliError } from '../context.ts';

/** Trajectories of one call. */
const BATCH = 100;
/** Larger states are left out. */
const LARGEST_STATE = 262_144;
/** Points of a metric, as the page asks for them. */
const METRIC_POINTS = 800;
/** A browser holds all answers in memory. */
const MOST_BYTES = 512 * 1024 * 1024;

/** Answers of the server, packed for a file: each a google.protobuf.Any with its length before it, in gzip. */
export class Recording {
  readonly #client: AnabranchClient;
  readonly #signal: AbortSignal;
  readonly #withStates: boolean;
  readonly #limit: number;
  readonly #gzip = createGzip({ level: 9 });
  readonly #packed: Buffer[] = [];
  #packedBytes = 0;
  #bytes = 0;

  /** `limit` is the largest size in gzip. Beyond it, recording fails. */
  constructor(
    client: AnabranchClient,
    {
      signal,
      withStates,
      limit,
    }: { readonly signal: AbortSignal; readonly withStates: boolean; readonly limit: number },
  ) {
    this.#client = client;
    this.#signal = signal;
    this.#withStates = withStates;
    this.#limit = limit;
    this.#gzip.on('data', (piece: Buffer) => {
      this.#packed.push(piece);
      this.#packedBytes += piece.length;
    });
  }

  /** Records trajectories with their own steps, except steps of those that `addRun` records. */
  async addTrajectories(nodes: readonly TreeNode[], recordedRunId = ''): Promise<void> {
    await this.#add(GetTreeResponseSchema, create(GetTreeResponseSchema, { nodes: [...nodes] }));
    const isNew = (runId: string) => recordedRunId === '' || runId !== recordedRunId;
    const ids = nodes.flatMap(({ trajectory, deleted }) =>
      trajectory !== undefined && !deleted && isNew(trajectory.runId) ? trajectory.id : [],
    );
    for (let at = 0; at < ids.length; at += BATCH) {
      const request = { trajectoryIds: ids.slice(at, at + BATCH), ...this.#reading() };
      for await (const each of this.#client.trajectories.readTrajectories(request, { signal: this.#signal })) {
        await this.#add(ReadTrajectoriesResponseSchema, each);
      }
    }
  }

  /** Records a run with its stages, groups, rollouts and metrics, and the trajectories of its rollouts. */
  async addRun(runId: string, parentId: string): Promise<void> {
    const options = { signal: this.#signal };
    const rolloutIds: string[] = [];
    const run = { runId, allStages: true, rollouts: true, series: true };
    const watch = this.#client.server.watch({ subjects: { run: { run } } }, options);
    for await (const { run: changes, caughtUp, error } of watch) {
      if (error !== undefined) throw new CliError(error.message);
      if (changes !== undefined) {
        rolloutIds.push(...changes.rollouts.map(({ id }) => id));
        await this.#add(RunChangesSchema, changes);
      }
      if (caughtUp) break;
    }
    const metrics = { runIds: [runId], runLevelOnly: true, maxPoints: METRIC_POINTS };
    for await (const message of this.#client.runs.readMetrics(metrics, options)) {
      await this.#add(ReadMetricsResponseSchema, message);
    }
    if (parentId !== '') {
      const compared = await this.#client.runs.compareRuns({ runIds: [parentId, runId] }, options);
      await this.#add(CompareRunsResponseSchema, compared);
    }
    for (const rolloutId of rolloutIds) {
      await this.#add(GetRolloutResponseSchema, await this.#client.rollouts.getRollout({ rolloutId }, options));
      const overrides = await this.#client.rollouts.listValidationOverrides({ rolloutId, pageSize: 200 }, options);
      if (overrides.overrides.length > 0) await this.#add(ListValidationOverridesResponseSchema, overrides);
    }
    const request = { runId, ...this.#reading() };
    for await (const each of this.#client.trajectories.readTrajectories(request, options)) {
      const { trajectory } = each;
      if (trajectory !== undefined) {
        await this.#add(GetTreeResponseSchema, create(GetTreeResponseSchema, { nodes: [{ trajectory }] }));
      }
      await this.#add(ReadTrajectoriesResponseSchema, each);
    }
  }

  /** Returns what was recorded. */
  async end(): Promise<Buffer> {
    this.#gzip.end();
    await once(this.#gzip, 'end');
    this.#check();
    return Buffer.concat(this.#packed);
  }

  #reading() {
    return { steps: StepScope.OWN, view: View.FULL, inlineBytes: this.#withStates ? LARGEST_STATE : 0 };
  }

  async #add<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): Promise<void> {
    const frame = new BinaryWriter().bytes(toBinary(AnySchema, anyPack(schema, message))).finish();
    this.#bytes += frame.length;
    this.#check();
    if (!this.#gzip.write(frame)) await once(this.#gzip, 'drain');
  }

  #check(): void {
    if (this.#packedBytes <= this.#limit && this.#bytes <= MOST_BYTES) return;
    const states = this.#withStates ? 'Leave --with-states out, or name' : 'Name';
    throw new CliError(`The file would be larger than 32 MiB. ${states} a single trajectory with --alone.`);
  }
}
