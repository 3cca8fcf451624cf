/** The views that are loaded when one of them is shown, as one file. */
export { CompareView } from './compare/compare_view.tsx';
export { GroupView } from './rollout/group_view.tsx';
export { RolloutView } from './rollout/rollout_view.tsx';
export { RunView } from './run/run_view.tsx';
export { TreeView } from './tree/tree_view.tsx';
