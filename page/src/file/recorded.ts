import { type DescMessage, fromBinary, type MessageShape } from '@bufbuild/protobuf';
import { BinaryReader } from '@bufbuild/protobuf/wire';
import { AnySchema, anyUnpack } from '@bufbuild/protobuf/wkt';
import {
  type GetRolloutResponse,
  GetRolloutResponseSchema,
  type ListValidationOverridesResponse,
  ListValidationOverridesResponseSchema,
} from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  CompareRunsResponseSchema,
  type ConfigDifference,
  type ReadMetricsResponse,
  ReadMetricsResponseSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { type RunChanges, RunChangesSchema } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  GetTreeResponseSchema,
  ReadTrajectoriesResponseSchema,
  type TreeNode,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';

/** Answers of a server, as a file has them. */
export interface Recorded {
  /** Trajectories by id. */
  readonly nodes: Map<string, TreeNode>;
  /** Own steps of a trajectory. */
  readonly steps: Map<string, Step[]>;
  /** Bytes of states and contents, by digest. */
  readonly blobs: Map<string, Uint8Array>;
  readonly runChanges: RunChanges[];
  readonly metrics: ReadMetricsResponse[];
  readonly differences: ConfigDifference[];
  readonly rollouts: Map<string, GetRolloutResponse>;
  /** Verdicts by hand, by the id of their rollout. */
  readonly overrides: Map<string, ListValidationOverridesResponse>;
}

/** Reads a sequence of answers, each a google.protobuf.Any with its length before it. */
export function readRecorded(bytes: Uint8Array): Recorded {
  const recorded: Recorded = {
    nodes: new Map(),
    steps: new Map(),
    blobs: new Map(),
    runChanges: [],
    metrics: [],
    differences: [],
    rollouts: new Map(),
    overrides: new Map(),
  };
  let current: Step[] = [];
  let rolloutId = '';
  const readers: readonly Reader[] = [
    readerOf(GetTreeResponseSchema, ({ nodes }) => {
      for (const node of nodes) recorded.nodes.set(node.trajectory?.id ?? '', node);
    }),
    readerOf(ReadTrajectoriesResponseSchema, ({ trajectory, steps, blobs }) => {
      for (const { digest, data } of blobs) recorded.blobs.set(digest, data);
      if (trajectory !== undefined) {
        current = [];
        recorded.steps.set(trajectory.id, current);
      }
      current.push(...steps);
    }),
    readerOf(RunChangesSchema, (changes) => recorded.runChanges.push(changes)),
    readerOf(ReadMetricsResponseSchema, (message) => recorded.metrics.push(message)),
    readerOf(CompareRunsResponseSchema, ({ comparisons }) => {
      recorded.differences.push(...(comparisons[0]?.configDifferences ?? []));
    }),
    readerOf(GetRolloutResponseSchema, (message) => {
      rolloutId = message.rollout?.id ?? '';
      recorded.rollouts.set(rolloutId, message);
    }),
    // They follow their rollout.
    readerOf(ListValidationOverridesResponseSchema, (message) => recorded.overrides.set(rolloutId, message)),
  ];
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const any = fromBinary(AnySchema, reader.bytes());
    if (!readers.some((read) => read(any)))
      throw new Error(`the file has an answer of an unknown kind: ${any.typeUrl}`);
  }
  return recorded;
}

type Reader = (any: MessageShape<typeof AnySchema>) => boolean;

function readerOf<Desc extends DescMessage>(schema: Desc, take: (message: MessageShape<Desc>) => void): Reader {
  return (any) => {
    const message = anyUnpack(any, schema);
    if (message !== undefined) take(message);
    return message !== undefined;
  };
}

/** Returns a step of a trajectory, inherited ones included, with its owner. */
export function stepAt(
  { nodes, steps }: Recorded,
  trajectoryId: string,
  stepNumber: bigint,
): { readonly owner: string; readonly step: Step } | undefined {
  let node = nodes.get(trajectoryId);
  while (node?.trajectory?.branchPoint !== undefined && stepNumber <= node.trajectory.branchPoint) {
    node = nodes.get(node.trajectory.parentId);
  }
  if (node?.trajectory === undefined) return undefined;
  const { id, branchPoint = -1n } = node.trajectory;
  const step = steps.get(id)?.[Number(stepNumber - branchPoint - 1n)];
  return step === undefined ? undefined : { owner: id, step };
}
