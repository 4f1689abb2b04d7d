"""Every public name of mcgrad 0.1.5 and its parameters, and the rows of `docs/migrate.md` for them.

`tests/parity/test_mcgrad.py` compares the list with the installed package, and the code of the rows with its results.
"""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "migrate.md").read_text()
SECTION = TEXT[TEXT.index("## From mcgrad") : TEXT.index("## From netcal")]

# module.name, module.Class.member, each with the names of its parameters.
LISTED = """
base.BaseCalibrator
base.BaseCalibrator.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
base.BaseCalibrator.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
base.BaseCalibrator.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.logger
methods.MCGrad: encode_categorical_variables monotone_t num_rounds lightgbm_params early_stopping patience early_stopping_use_crossvalidation n_folds early_stopping_score_func early_stopping_minimize_score early_stopping_timeout save_training_performance monitored_metrics_during_training allow_missing_segment_feature_values random_state
methods.MCGrad.UNSHRINK_LOGIT_EPSILON
methods.MCGrad.DEFAULT_HYPERPARAMS
methods.MCGrad.VALID_SIZE
methods.MCGrad.MCE_STAT_SIGN_THRESHOLD
methods.MCGrad.MCE_STRONG_EVIDENCE_THRESHOLD
methods.MCGrad.DEFAULT_ALLOW_MISSING_SEGMENT_FEATURE_VALUES
methods.MCGrad.ESS_THRESHOLD_FOR_CROSS_VALIDATION
methods.MCGrad.MAX_NUM_ROUNDS_EARLY_STOPPING
methods.MCGrad.NUM_ROUNDS_DEFAULT_NO_EARLY_STOPPING
methods.MCGrad.feature_importance
methods.MCGrad.performance_metrics
methods.MCGrad.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names df_val
methods.MCGrad.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names return_all_rounds
methods.MCGrad.num_rounds_trained
methods.MCGrad.serialize
methods.MCGrad.deserialize: model_str
methods.MCGrad.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.RegressionMCGrad: encode_categorical_variables monotone_t num_rounds lightgbm_params early_stopping patience early_stopping_use_crossvalidation n_folds early_stopping_score_func early_stopping_minimize_score early_stopping_timeout save_training_performance monitored_metrics_during_training allow_missing_segment_feature_values random_state
methods.RegressionMCGrad.DEFAULT_HYPERPARAMS
methods.RegressionMCGrad.VALID_SIZE
methods.RegressionMCGrad.MCE_STAT_SIGN_THRESHOLD
methods.RegressionMCGrad.MCE_STRONG_EVIDENCE_THRESHOLD
methods.RegressionMCGrad.DEFAULT_ALLOW_MISSING_SEGMENT_FEATURE_VALUES
methods.RegressionMCGrad.ESS_THRESHOLD_FOR_CROSS_VALIDATION
methods.RegressionMCGrad.MAX_NUM_ROUNDS_EARLY_STOPPING
methods.RegressionMCGrad.NUM_ROUNDS_DEFAULT_NO_EARLY_STOPPING
methods.RegressionMCGrad.feature_importance
methods.RegressionMCGrad.performance_metrics
methods.RegressionMCGrad.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names df_val
methods.RegressionMCGrad.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names return_all_rounds
methods.RegressionMCGrad.num_rounds_trained
methods.RegressionMCGrad.serialize
methods.RegressionMCGrad.deserialize: model_str
methods.RegressionMCGrad.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.PlattScaling
methods.PlattScaling.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.PlattScaling.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.PlattScaling.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.IsotonicRegression
methods.IsotonicRegression.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.IsotonicRegression.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.IsotonicRegression.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.MultiplicativeAdjustment: clip_to_zero_one
methods.MultiplicativeAdjustment.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.MultiplicativeAdjustment.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.MultiplicativeAdjustment.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.AdditiveAdjustment: clip_to_zero_one
methods.AdditiveAdjustment.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.AdditiveAdjustment.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.AdditiveAdjustment.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.IdentityCalibrator
methods.IdentityCalibrator.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.IdentityCalibrator.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.IdentityCalibrator.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.PlattScalingWithFeatures
methods.PlattScalingWithFeatures.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.PlattScalingWithFeatures.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.PlattScalingWithFeatures.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
methods.TCalibrator
methods.SegmentwiseCalibrator: calibrator_class calibrator_kwargs
methods.SegmentwiseCalibrator.fit: df_train prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names
methods.SegmentwiseCalibrator.predict: df prediction_column_name categorical_feature_column_names numerical_feature_column_names
methods.SegmentwiseCalibrator.fit_transform: df prediction_column_name label_column_name weight_column_name categorical_feature_column_names numerical_feature_column_names is_train_set_col_name
metrics.logger
metrics.CALIBRATION_ERROR_NUM_BINS
metrics.CALIBRATION_ERROR_EPSILON
metrics.DEFAULT_PRECISION_DTYPE
metrics.ECCE_SIGMA_MAX
metrics.ECCE_SIGMA_MIN
metrics.expected_calibration_error: labels predicted_scores sample_weight num_bins epsilon adjust_unjoined
metrics.proportional_expected_calibration_error: labels predicted_scores sample_weight num_bins epsilon adjust_unjoined
metrics.adaptive_calibration_error: labels predicted_scores sample_weight num_bins epsilon adjust_unjoined
metrics.proportional_adaptive_calibration_error: labels predicted_scores sample_weight num_bins epsilon adjust_unjoined
metrics.calibration_ratio: labels predicted_scores sample_weight adjust_unjoined
metrics.recall: labels predicted_labels sample_weight
metrics.precision: labels predicted_labels precision_weight
metrics.youdens_j: labels predicted_scores sample_weight
metrics.fpr: labels predicted_labels sample_weight
metrics.fpr_with_mask: y_true y_pred y_mask sample_weight denominator
metrics.dcg_score: labels predicted_labels rank_discount k
metrics.ndcg_score: labels predicted_labels rank_discount k sample_weight
metrics.recall_at_precision: y_true y_scores precision_target sample_weight
metrics.precision_at_predictive_prevalence: y_true y_scores predictive_prevalence_target sample_weight
metrics.precision_at_recall: y_true y_scores recall_target sample_weight
metrics.fpr_at_precision: y_true y_scores precision_target sample_weight
metrics.multi_cg_score: labels predictions segments_df metric rank_discount k
metrics.ecce_pvalue_from_sigma: ecce_sigma
metrics.ecce: labels predicted_scores sample_weight
metrics.ecce_sigma: labels predicted_scores sample_weight
metrics.ecce_pvalue: labels predicted_scores sample_weight
metrics.rank_calibration_error: labels predicted_labels num_bins
metrics.rank_multicalibration_error: labels predicted_labels segments_df num_bins
metrics.normalized_entropy: labels predicted_scores sample_weight
metrics.calibration_free_normalized_entropy: labels predicted_scores sample_weight tolerance max_iter
metrics.DEFAULT_MCE_MAX_VALUES_PER_SEGMENT_FEATURE
metrics.DEFAULT_MCE_MIN_DEPTH
metrics.DEFAULT_MCE_MAX_DEPTH
metrics.DEFAULT_MCE_MIN_SAMPLES_PER_SEGMENT
metrics.DEFAULT_MCE_GLOBAL_NORMALIZATION
metrics.DEFAULT_MCE_N_SEGMENTS
metrics.MulticalibrationError: df label_column score_column weight_column categorical_segment_columns numerical_segment_columns max_depth max_values_per_segment_feature min_samples_per_segment max_n_segments chunk_size precision_dtype outcome_type
metrics.MulticalibrationError.segments_ecce
metrics.MulticalibrationError.segments_ecce_relative
metrics.MulticalibrationError.global_ecce
metrics.MulticalibrationError.global_ecce_relative
metrics.MulticalibrationError.global_ecce_sigma
metrics.MulticalibrationError.global_ecce_pvalue
metrics.MulticalibrationError.segments_ecce_sigma
metrics.MulticalibrationError.segments_ecce_pvalue
metrics.MulticalibrationError.mce_sigma
metrics.MulticalibrationError.mce
metrics.MulticalibrationError.mce_relative
metrics.MulticalibrationError.mce_pvalue
metrics.MulticalibrationError.mde
metrics.MulticalibrationError.mde_relative
metrics.soft_label_log_loss: y_true y_pred sample_weight
metrics.wrap_sklearn_metric_func: func
metrics.wrap_multicalibration_error_metric: categorical_segment_columns numerical_segment_columns max_depth max_values_per_segment_feature min_samples_per_segment max_n_segments metric_version outcome_type
plotting.BinningMethod
plotting.plot_global_calibration_curve: data score_col label_col num_bins sample_weight_col binning_method plot_incomplete_cis x_lim
plotting.plot_calibration_curve_by_segment: data group_var score_col label_col num_bins n_cols sample_weight_col binning_method
plotting.SegmentQuantity
plotting.plot_segment_calibration_errors: mce highlight_feature quantity
plotting.plot_learning_curve: mcgrad_model show_all
tuning.logger
tuning.default_parameter_configurations
tuning.ORIGINAL_LIGHTGBM_PARAMS
tuning.tune_mcgrad_params: model df_train prediction_column_name label_column_name df_val weight_column_name categorical_feature_column_names numerical_feature_column_names n_trials n_warmup_random_trials parameter_configurations pass_df_val_into_tuning pass_df_val_into_final_fit use_model_predictions
tutorials.helpers.ElapsedFormatter
tutorials.helpers.ElapsedFormatter.format: record
tutorials.helpers.configure_logging: level
tutorials.helpers.get_plotting_template
tutorials.helpers.format_calibration_metrics_table: calibration_metrics max_digits
tutorials.helpers.combine_segment_calibration_plots: segment_plots quantity
tutorials.helpers.setup_plotting
tutorials.helpers.NUMERICAL_COLUMNS
tutorials.helpers.BINARY_COLUMNS
tutorials.helpers.CATEGORICAL_COLUMNS
tutorials.helpers.LABEL_COLUMN
tutorials.helpers.create_logistic_pipeline
tutorials.helpers.load_acs_employment_data: states survey_year horizon root_dir
"""


def public_names():
    """Return the parameters of every public name."""
    entries = (line.partition(":") for line in LISTED.strip().splitlines())
    return {name: parameters.split() for name, _, parameters in entries}


def table_rows(text=SECTION):
    """Return the three cells of each row of the tables of a text, without the heads."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in lines if row[0].strip() != "mcgrad"]


def row_code(row):
    """Return the code of the second cell of a row, or None."""
    found = re.fullmatch(r"`([^`]+)`", row[1])
    return found[1] if found else None


def row_names(rows):
    """Return the identifiers in the code of the first cells."""
    return {name for row in rows for code in re.findall(r"`([^`]+)`", row[0]) for name in re.findall(r"\w+", code)}


def code_for(name):
    """Return the code of the first row whose first cell names ``name``."""
    return next(row_code(row) for row in table_rows() if name in row_names([row]))
