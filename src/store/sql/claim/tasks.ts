import type { Task, Validator } from '../../../domain/rollout.ts';
import { padded } from '../statement_shapes.ts';
import { readTask, selectTasks } from '../task/tasks.ts';
import { readValidator, selectValidators } from '../task/validators.ts';
import type { Transaction } from '../transaction.ts';

/** Task and validators that a claim returns. */
export interface Assigned {
  readonly task: Task | undefined;
  readonly validators: readonly Validator[];
}

/** Tasks and validators by row key of the task. */
export type Assignments = ReadonlyMap<bigint, Assigned>;

const NOTHING: Assigned = { task: undefined, validators: [] };

/**
 * Reads the tasks and validators of rollouts. The statements are sent together, and their number does not grow with the
 * rollouts. Entries of `known` are not read again.
 */
export async function readAssignments(
  tx: Transaction,
  rollouts: readonly { readonly task: bigint | null }[],
  known: Assignments = new Map(),
): Promise<Assignments> {
  const { engine } = tx;
  const found = [...new Set(rollouts.flatMap(({ task }) => task ?? []))].filter((task) => !known.has(task));
  if (found.length === 0) return known;
  const { db, kept } = engine;
  const keys = padded(found);
  const [tasks, validators] = await Promise.all([
    engine.ask(
      tx.db,
      kept.of('tasks by key', [keys], (among) => selectTasks(db).where('k.key', 'in', among)),
    ),
    engine.ask(
      tx.db,
      kept.of('validators of tasks', [keys], (among) =>
        selectValidators(db).where('v.task', 'in', among).orderBy('v.type'),
      ),
    ),
  ]);
  const of = Map.groupBy(validators, ({ task }) => task);
  const read = tasks.map((row): [bigint, Assigned] => {
    return [row.key, { task: readTask(row), validators: (of.get(row.key) ?? []).map(readValidator) }];
  });
  return new Map([...known, ...read]);
}

export function assignedTo({ task }: { readonly task: bigint | null }, assignments: Assignments): Assigned {
  return (task === null ? undefined : assignments.get(task)) ?? NOTHING;
}
