import type { ComponentType } from 'preact';
import type { Address } from './address.ts';

export type ViewOfId = ComponentType<{ readonly id: string }>;

const views = () => import('./views.ts');

/** Views that are loaded when they are shown. The search is not: letters that follow `/` must find its field. */
export const LATER: Readonly<Partial<Record<Address['view'], () => Promise<ViewOfId>>>> = {
  compare: async () => (await views()).CompareView,
  group: async () => (await views()).GroupView,
  rollout: async () => (await views()).RolloutView,
  run: async () => (await views()).RunView,
  tree: async () => (await views()).TreeView,
};
