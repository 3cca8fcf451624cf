import type { ComponentType } from 'preact';
import type { Address } from './address.ts';

export type ViewOfId = ComponentType<{ readonly id: string }>;

/** Views that are loaded when they are shown. The search is not: letters that follow `/` must find its field. */
export const LATER: Readonly<Partial<Record<Address['view'], () => Promise<ViewOfId>>>> = {
  compare: async () => (await import('./compare/compare_view.tsx')).CompareView,
  group: async () => (await import('./rollout/group_view.tsx')).GroupView,
  rollout: async () => (await import('./rollout/rollout_view.tsx')).RolloutView,
  run: async () => (await import('./run/run_view.tsx')).RunView,
  tree: async () => (await import('./tree/tree_view.tsx')).TreeView,
};
