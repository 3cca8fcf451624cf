import { createHash, randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { StepSchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/** The stored data, as far as the writers know. A tree has one writer, which makes one call at a time. */

/** One trajectory. Its content follows from its id, so it need not be kept. */
export interface Node {
  readonly id: string;
  readonly parent: Node | undefined;
  /** The last inherited step; -1 for a root. */
  readonly branchPoint: number;
  readonly branches: Node[];
  /** Whether the call that creates it was answered. */
  created: boolean;
  /** The next step number, by the acks. An unanswered call may have stored one step more. */
  end: number;
  sealed: boolean;
  /** Steps that a state was attached to, by the answers. */
  readonly attached: Set<number>;
  /** Whether a deletion was started, and whether it was answered. If neither is true, the trajectory must be found. */
  deletion: 'none' | 'begun' | 'answered';
}

/** The name of states that AttachState adds. */
export const ATTACHED = 'attached';

export function makeNode(parent?: Node, branchPoint = -1): Node {
  return {
    id: randomUUID(),
    parent,
    branchPoint,
    branches: [],
    created: false,
    end: branchPoint + 1,
    sealed: false,
    attached: new Set(),
    deletion: 'none',
  };
}

/** The owner of a step of the lineage. */
export function ownerOf(node: Node, stepNumber: number): Node {
  let owner = node;
  while (owner.parent !== undefined && stepNumber <= owner.branchPoint) owner = owner.parent;
  return owner;
}

/** The trajectory and all its branches, transitively. */
export function withBranches(node: Node): Node[] {
  return [node, ...node.branches.flatMap(withBranches)];
}

export function textOf(owner: Node, stepNumber: number): string {
  return `step ${stepNumber} of ${owner.id}`;
}

/** A few states are shared by many trees, all others belong to one step. They are too large to be stored in the row. */
export function stateOf(owner: Node, stepNumber: number, name: string): Buffer {
  const seed = stepNumber % 2 === 0 ? `shared ${stepNumber % 6}` : `${name} of ${textOf(owner, stepNumber)}`;
  return Buffer.from(`${seed}\n`.repeat(40));
}

/** Every third step has no state of its own. */
export function hasState(stepNumber: number): boolean {
  return stepNumber % 3 !== 2;
}

/** Its state is sent inline, or by its digest if it was uploaded before. */
export function stepOf(owner: Node, stepNumber: number, digest?: string): MessageInitShape<typeof StepSchema> {
  const state = digest === undefined ? { data: stateOf(owner, stepNumber, 'env') } : { digest };
  return {
    stepNumber: BigInt(stepNumber),
    reward: stepNumber,
    observations: [{ content: { text: textOf(owner, stepNumber) } }],
    states: hasState(stepNumber) ? [{ name: 'env', ...state }] : [],
  };
}

export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
