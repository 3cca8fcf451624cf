import type { Task } from '../../../../domain/rollout.ts';
import { padded } from '../../kit/statement_shapes.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { readTask, selectTasks } from '../task/tasks.ts';
import { byTask, selectValidators } from '../task/validators.ts';

export type TasksByKey = ReadonlyMap<bigint, Task>;

/**
 * Reads the tasks of rollouts, with their validators. The statements are sent together, and their number does not grow
 * with the rollouts. Entries of `known` are not read again.
 */
export async function readTasks(
  tx: Transaction,
  rollouts: readonly { readonly task: bigint | null }[],
  known: TasksByKey = new Map(),
): Promise<TasksByKey> {
  const { engine } = tx;
  const found = [...new Set(rollouts.flatMap(({ task }) => task ?? []))].filter((task) => !known.has(task));
  if (found.length === 0) return known;
  const { db, kept } = engine;
  const keys = padded(found);
  const [tasks, validators] = await Promise.all([
    engine.transactions.ask(
      tx.db,
      kept.of('tasks by key', [keys], (among) => selectTasks(db).where('k.key', 'in', among)),
    ),
    engine.transactions.ask(
      tx.db,
      kept.of('validators of tasks', [keys], (among) => selectValidators(db).where('v.task', 'in', among)),
    ),
  ]);
  const validatorsOf = byTask(validators);
  return new Map([
    ...known,
    ...tasks.map((row): [bigint, Task] => [row.key, readTask(row, validatorsOf.get(row.key))]),
  ]);
}

export function taskOf({ task }: { readonly task: bigint | null }, tasks: TasksByKey): Task | undefined {
  return task === null ? undefined : tasks.get(task);
}
