import type { Run } from '../../src/domain/run.ts';
import type { Horizon, RunChangesRead } from '../../src/store/contract/run.ts';
import type { RunScene } from './run_scene.ts';

/** Polls a run, each time from the horizon of the previous read, and keeps the newest revision of each stage. */
export class Watcher {
  readonly picture = new Map<string, bigint>();
  run: Run | undefined;
  readonly #here: RunScene;
  readonly #id: string;
  #horizon: Horizon | undefined;

  constructor(here: RunScene, { id }: { readonly id: string }) {
    this.#here = here;
    this.#id = id;
  }

  async read(allStages = false): Promise<RunChangesRead> {
    const found = await this.#here.store.readRunChanges(this.#here.namespace, this.#id, this.#horizon, allStages);
    if (found === undefined) throw new Error(`run ${this.#id} was not found`);
    this.#horizon = found.horizon;
    this.run = found.run;
    return found;
  }

  /** Number of rows that one poll reads. */
  async changed(): Promise<{ stages: number; groups: number; rollouts: number }> {
    const { stages, run, since } = await this.read();
    const { store, namespace } = this.#here;
    const where = { since, allStages: true };
    const page = { limit: 1000, after: undefined };
    const groups = await store.readChangedGroups(namespace, run.key, where, page);
    const rollouts = await store.readChangedRollouts(namespace, run.key, where, page);
    const keys = new Set([...groups.rows, ...rollouts.groups].map(({ key }) => key));
    return { stages: stages.length, groups: keys.size, rollouts: rollouts.rows.length };
  }

  /** Changes that are new to the watcher, as `number@revision`, in creation order. */
  async news(allStages = false): Promise<string[]> {
    const { stages } = await this.read(allStages);
    return stages.flatMap(({ id, number, revision }) => {
      if (revision <= (this.picture.get(id) ?? 0n)) return [];
      this.picture.set(id, revision);
      return [`${number}@${revision}`];
    });
  }
}
