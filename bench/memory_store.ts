import type { EncodedSteps } from '../src/store/contract/step.ts';
import type { Store } from '../src/store/contract/store.ts';
import { wrappedStore } from '../test/support/wrapped_store.ts';

/**
 * A store that reads a page of steps once and keeps it, to measure the cost of everything above the store. For
 * trajectories that do not grow. Each call returns new objects, because the service encodes the response of a shared
 * part only once.
 */
export function memoryStore(store: Store): Store {
  const pages = new Map<string, Promise<EncodedSteps[]>>();
  return wrappedStore(store, {
    readEncodedSteps(namespace, tree, lineage, range, view) {
      const key = `${tree}/${lineage.at(-1)?.key}/${range.from}/${range.to}/${view}`;
      let page = pages.get(key);
      if (page === undefined) {
        page = store.readEncodedSteps(namespace, tree, lineage, range, view);
        pages.set(key, page);
      }
      return page.then((parts) => parts.map((part) => ({ ...part })));
    },
  });
}
