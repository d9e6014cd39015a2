"""What is known about each data set: shape, statistics, official layout, address and checksum.

The statistics are over the training images on the [0, 1] pixel scale; as `std` of CIFAR-10 the
field takes the mean over the images of each one's own (over all pixels it is 0.247, 0.243, 0.262),
and ImageNet's statistics serve Places365 too. Checksums are the
publishers' own (MD5); where a publisher gives none, none is made up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from covprop.data.names import CIFAR10_NAMES, CIFAR100_NAMES, DIGIT_NAMES, FASHION_NAMES


@dataclass(frozen=True)
class Download:
    """One official file: fetched into `folder` below the data root, unpacked there if asked."""

    url: str
    md5: str
    folder: str
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Layout:
    """An official folder below the data root, and the files (or folders) each split needs."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """The facts of one registered data set.

    `certify_skip` is the field's habit of certifying every k-th test image, and `md5` holds the
    checksums of the (uncompressed) files that are verified on every load.
    """

    name: str
    title: str
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_size: int
    test_size: int
    certify_skip: int
    layouts: tuple[Layout, ...] = ()
    classes: tuple[str, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""

    def size(self, split: str) -> int:
        """How many images the official `split` holds."""
        return self.train_size if split == "train" else self.test_size


IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
PLACES_URL = "http://data.csail.mit.edu/places/places365/"

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def _idx(*folders: str) -> tuple[Layout, ...]:
    return tuple(Layout(folder, IDX_TRAIN, IDX_TEST) for folder in folders)


def _idx_downloads(url: str, folder: str, *md5: str) -> tuple[Download, ...]:
    names = (*IDX_TRAIN, *IDX_TEST)
    return tuple(
        Download(f"{url}{name}.gz", digest, folder) for name, digest in zip(names, md5, strict=True)
    )


_ALL = (
    Facts(
        name="digits",
        title="8×8 digits embedded in scikit-learn; every fifth image is a test image",
        num_classes=10,
        image_shape=(1, 8, 8),
        mean=(0.3053,),
        std=(0.3762,),
        train_size=1437,
        test_size=360,
        certify_skip=1,
        classes=DIGIT_NAMES,
    ),
    Facts(
        name="mnist",
        title="28×28 handwritten digits (IDX files, gzipped or not)",
        num_classes=10,
        image_shape=(1, 28, 28),
        mean=(0.1307,),
        std=(0.3081,),
        train_size=60_000,
        test_size=10_000,
        certify_skip=20,
        layouts=_idx("mnist", "MNIST/raw", "MNIST"),
        classes=DIGIT_NAMES,
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        downloads=_idx_downloads(
            MNIST_URL,
            "mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    Facts(
        name="fashion-mnist",
        title="28×28 clothes (IDX files, gzipped or not)",
        num_classes=10,
        image_shape=(1, 28, 28),
        mean=(0.2860,),
        std=(0.3530,),
        train_size=60_000,
        test_size=10_000,
        certify_skip=20,
        layouts=_idx("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
        classes=FASHION_NAMES,
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        downloads=_idx_downloads(
            FASHION_URL,
            "fashion-mnist",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    Facts(
        name="cifar10",
        title="32×32 colour images of 10 objects (binary or python version)",
        num_classes=10,
        image_shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        train_size=50_000,
        test_size=10_000,
        certify_skip=20,
        layouts=(
            Layout(
                "cifar-10-batches-bin",
                tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
                ("test_batch.bin",),
            ),
            Layout(
                "cifar-10-batches-py",
                tuple(f"data_batch_{i}" for i in range(1, 6)),
                ("test_batch",),
            ),
        ),
        classes=CIFAR10_NAMES,
        md5={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        downloads=(
            Download(
                f"{CIFAR_URL}cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                "",
                unpack=True,
            ),
        ),
    ),
    Facts(
        name="cifar100",
        title="32×32 colour images of 100 objects, fine labels (binary or python version)",
        num_classes=100,
        image_shape=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        train_size=50_000,
        test_size=10_000,
        certify_skip=20,
        layouts=(
            Layout("cifar-100-binary", ("train.bin",), ("test.bin",)),
            Layout("cifar-100-python", ("train",), ("test",)),
        ),
        classes=CIFAR100_NAMES,
        md5={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
        downloads=(
            Download(
                f"{CIFAR_URL}cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                "",
                unpack=True,
            ),
        ),
    ),
    Facts(
        name="svhn",
        title="32×32 house numbers, cropped digits (.mat files)",
        num_classes=10,
        image_shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        train_size=73_257,
        test_size=26_032,
        certify_skip=50,
        layouts=tuple(
            Layout(folder, ("train_32x32.mat",), ("test_32x32.mat",))
            for folder in ("svhn", "SVHN", ".")
        ),
        classes=DIGIT_NAMES,
        downloads=(
            Download(f"{SVHN_URL}train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "svhn"),
            Download(f"{SVHN_URL}test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "svhn"),
        ),
    ),
    Facts(
        name="imagenet",
        title="ILSVRC 2012, 1000 classes, one folder a class in train/ and val/",
        num_classes=1000,
        image_shape=(3, 224, 224),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        train_size=1_281_167,
        test_size=50_000,
        certify_skip=100,
        layouts=tuple(
            Layout(folder, ("train",), ("val",))
            for folder in ("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
        ),
        by_hand="register at https://image-net.org, then unpack the ILSVRC 2012 archives as "
        "imagenet/train/nXXXXXXXX/*.JPEG and imagenet/val/nXXXXXXXX/*.JPEG below the data folder",
    ),
    Facts(
        name="places365",
        title="Places365-Standard, 365 scenes, 256-pixel images",
        num_classes=365,
        image_shape=(3, 224, 224),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        train_size=1_803_460,
        test_size=36_500,
        certify_skip=73,
        layouts=(
            Layout("places365_standard", ("train",), ("val",)),
            Layout(
                "places365",
                ("categories_places365.txt", "places365_train_standard.txt", "data_256"),
                ("categories_places365.txt", "places365_val.txt", "val_256"),
            ),
            Layout("places365", ("train",), ("val",)),
        ),
        downloads=tuple(
            Download(f"{PLACES_URL}{name}", md5, "places365", unpack=True)
            for name, md5 in (
                ("filelist_places365-standard.tar", "35a0585fee1fa656440f3ab298f8479c"),
                ("val_256.tar", "e27b17d8d44f4af9a78502beb927f808"),
                ("train_256_places365standard.tar", "53ca1c756c3d1e7809517cc47c5561c5"),
            )
        ),
    ),
)

DATASETS: dict[str, Facts] = {facts.name: facts for facts in _ALL}
