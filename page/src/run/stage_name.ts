import { type Stage, StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { count } from '../format.ts';

const KINDS: Readonly<Record<StageKind, string>> = {
  [StageKind.UNSPECIFIED]: 'Stage',
  [StageKind.TRAIN_STEP]: 'Train step',
  [StageKind.EVAL]: 'Eval',
  [StageKind.BASELINE]: 'Baseline',
};

export function stageName(stage: Pick<Stage, 'kind' | 'number'> | undefined): string {
  return stage === undefined ? 'Stage' : `${KINDS[stage.kind] ?? 'Stage'} ${count(stage.number)}`;
}
