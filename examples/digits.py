"""Handwritten digits with a small convolutional network: 1,797 real 8x8 images from the UCI repository.

usage: python examples/digits.py [--epochs N] [--batch-size N] [--checkpoint PATH]
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data():
    """Images as float32 [n, 8, 8, 1] in 0..1 and labels as int [n], for training and for the final test."""
    digits = load_digits()
    images = digits.images[..., None].astype("float32") / 16
    return train_test_split(images, digits.target, test_size=0.2, random_state=0)


def build_model():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="gelu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="gelu"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="gelu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--checkpoint", default="digits.keras", help="where the best model is saved")
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    x_train, x_test, y_train, y_test = load_data()
    model = build_model()
    model.fit(
        x_train,
        y_train,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_split=0.1,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(args.checkpoint, save_best_only=True),
        ],
        verbose=2,
    )
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=args.batch_size, verbose=0)
    print(f"test loss {loss:.6f}, test accuracy {accuracy:.4f}; best model in {args.checkpoint}")


if __name__ == "__main__":
    main()
