import type { Caller } from '../../domain/caller.ts';
import type { OwnedStep, StepFilter, StepSort, StepView } from '../../store/contract/step.ts';
import type { App } from '../app.ts';
import type { PageArgs, PageOf } from '../page_token.ts';

export interface ListStepsArgs extends PageArgs {
  /** Steps of a lineage, or own steps of all trajectories of a task. */
  readonly of: { readonly trajectoryId: string } | { readonly taskId: string };
  readonly filter: Omit<StepFilter, 'of'>;
  readonly order: StepSort;
  readonly view: StepView;
}

/** RD4. A page ends early at about 1 MiB. Errors: TRAJECTORY_NOT_FOUND. */
export async function listSteps(_app: App, _caller: Caller, _args: ListStepsArgs): Promise<PageOf<OwnedStep>> {
  throw new Error('being written');
}
